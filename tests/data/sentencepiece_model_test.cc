// SentencePiece models of other makers: the fields of their files, decoding, the losses that they report, and damaged
// files.
#include "data/sentencepiece_model.h"

#include <gtest/gtest.h>

#include <random>

#include "base/errors.h"
#include "tests/data/tokenizer_texts.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::sentencepiece_model_test {
namespace {

std::string field(int number, std::string_view content) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(content.size())} + std::string(content);
}
std::string field(int number, int value) {
  return number < 16 ? std::string{static_cast<char>(number << 3), static_cast<char>(value)}
                     : std::string{static_cast<char>((number << 3 & 0x7f) | 0x80), static_cast<char>(number >> 4),
                                   static_cast<char>(value)};
}
std::string piece(std::string_view text, int type) {
  return field(1, field(1, text) + std::string("\x15\0\0\x80\xbf", 5) + field(3, type));
}

std::string small_model() {
  return piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3) + piece("<0x0A>", 6) + piece("\xe2\x96\x81hi", 1) +
         piece("!", 4) + field(2, field(3, 2) + field(40, 0) + field(35, 1)) + field(3, field(3, 1) + field(4, 0));
}

TEST(SentencePieceModel, ReadsTheFieldsThatDecodingNeeds) {
  const SentencePieceModel model = parse_sentencepiece_model(small_model(), "m");
  ASSERT_EQ(model.pieces.size(), 6u);
  EXPECT_EQ(model.pieces[4].text, "\xe2\x96\x81hi");
  EXPECT_EQ(model.pieces[4].score, -1.0f);
  EXPECT_EQ(model.pieces[5].type, SentencePieceModel::kUser);
  EXPECT_EQ(model.kind, 2);
  EXPECT_TRUE(model.byte_fallback);
  EXPECT_TRUE(model.add_dummy_prefix);
  EXPECT_FALSE(model.remove_extra_whitespaces);
  EXPECT_EQ(model.eos_id, 2);
}

TEST(SentencePieceModel, ForeignModelsDecodeAndSayWhatTheyLose) {
  TempFolder folder;
  const auto tokenizer = load_tokenizer(folder.write("small.model", small_model()), "", {});
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  // The dummy space before each line is removed; a space within a line is kept.
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 4, 5, 4, 3, 4, 2}), "hi! hi\nhi");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0}), "\xe2\x81\x87 ");
  EXPECT_NE(tokenizer->caveat().find("no bytes for unknown characters, puts a space before each line"),
            std::string::npos)
      << tokenizer->caveat();
}

TEST(SentencePieceModel, ForeignModelsEncodeAsWellAsTheyCan) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder;
  folder.write("a.txt", sample(3000, 1));
  const auto train = [&](const std::string& name, const std::string& options) {
    const std::string command = "cd " + folder.path() + " && spm_train --input=a.txt --model_prefix=" + name + " " +
                                options + " --num_threads=1 --minloglevel=2 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return load_tokenizer(folder / (name + ".model"), "", {});
  };
  const std::string text = "the hacker  of\n\n   running kernel 2026\n caf\xc3\xa9\n";
  // Like the model of Llama 2: byte fallback, but a dummy space before each line.
  const auto llama = train("llama",
                           "--vocab_size=330 --model_type=bpe --byte_fallback --normalization_rule_name=identity "
                           "--remove_extra_whitespaces=false");
  EXPECT_EQ(llama->decode(llama->encode(text)), text);
  EXPECT_EQ(llama->caveat(), "tokens do not reproduce the text exactly: the model puts a space before each line");
  // A model with SentencePiece's default options.
  const auto plain = train("plain", "--vocab_size=60 --hard_vocab_limit=false");
  EXPECT_EQ(plain->decode(plain->encode(text)), "the hacker of running kernel 2026 caf\xc3\xa9");
  for (const char* words : {"normalization table", "extra spaces", "no bytes", "no newline"})
    EXPECT_NE(plain->caveat().find(words), std::string::npos) << plain->caveat();
}

TEST(SentencePieceModel, DamageIsRefusedWithFileAndOffset) {
  const std::string good = small_model();
  EXPECT_TRUE(says(message_of<DataError>([&] { parse_sentencepiece_model(good + piece("<unk2>", 2), "m.model"); }),
                   {"m.model: offset ", "a second unknown piece, of which a model must have at most one"}));
  int refused = 0;
  for (size_t size = 0; size < good.size(); ++size) {
    try {
      parse_sentencepiece_model(good.substr(0, size), "m.model");
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()).find("m.model: offset "), 0u);
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(good.size()) - 12);  // a cut between two fields is a shorter but valid model
  std::mt19937 random(4);
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = good;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      EXPECT_FALSE(parse_sentencepiece_model(damaged, "m").pieces.empty());
    } catch (const DataError&) {
    }
  }
  TempFolder folder;
  EXPECT_THROW(load_tokenizer(folder.write("text.model", "this is no model at all"), "", {}), DataError);
  EXPECT_THROW(load_tokenizer(folder.write("empty.model", ""), "", {}), DataError);
}

}  // namespace
}  // namespace orthant::sentencepiece_model_test
