#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/errors.h"
#include "base/json.h"
#include "data/sentencepiece_model.h"
#include "data/utf8.h"
#include "tests/data/temp_folder.h"

namespace orthant {
namespace {

using test::message_of;
using test::read_file;
using test::TempFolder;

bool has_sentencepiece() {
  return std::system("command -v spm_train >/dev/null 2>&1 && command -v spm_encode >/dev/null 2>&1") == 0;
}
#define SKIP_WITHOUT_SENTENCEPIECE() \
  if (!has_sentencepiece()) GTEST_SKIP() << "spm_train and spm_encode are not on PATH (apt-get install sentencepiece)"

/// English-looking text from a fixed list of words, with what tokenizers stumble over here and there.
std::string sample(int words, uint32_t seed) {
  static const char* kWords[] = {"the",    "hacker", "of", "compiler",  "and",  "caf\xc3\xa9", "running", "interface",
                                 "kernel", "2026",   "a",  "debugging", "with", "mesh",        "tensor",  "parallel"};
  std::mt19937 random(seed);
  std::string text;
  for (int i = 0; i < words; ++i) {
    text += kWords[random() % std::size(kWords)];
    const uint32_t next = random() % 12;
    text += next == 0 ? ".\n" : next == 1 ? ",\n\n   " : next == 2 ? "\t" : " ";
  }
  return text;
}

const std::vector<std::string>& hard_texts() {
  static const std::vector<std::string> texts = {
      "",
      "\n",
      "\n\n\n",
      " ",
      "   ",
      "a",
      "\na",
      "a\n",
      " a b  c   d\n  e\t\tf \n",
      "caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80 \xef\xbf\xbd \xef\xbb\xbf bom",
      "space mark \xe2\x96\x81 and \xe2\x96\x81\xe2\x96\x81 more\xe2\x96\x81",
      "<s> </s> <unk> <|endoftext|> <0x0A> <pad>\n",
      "carriage\r\nreturn\r",
      std::string("nul\0byte\0", 9),
      "not utf-8: \xff\xfe\x80 \xc3",
      "\xed\xa0\x80 \xc0\x80 \xf4\x90\x80\x80 \xe2\x96",
      "\xc2\xa0 \xe2\x80\xa8 \xe3\x80\x80"};
  return texts;
}

void expect_round_trips(const Tokenizer& tokenizer) {
  std::vector<std::string> texts = hard_texts();
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    std::string rubbish, valid;
    for (int i = 0; i < 300; ++i) {
      rubbish += static_cast<char>(random());
      const uint32_t code = random() % 3 ? random() % 0x250 : 0x2000 + random() % 0x800;
      if (code < 0x80)
        valid += static_cast<char>(code);
      else if (code < 0x800)
        valid += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
      else
        valid += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
                  static_cast<char>(0x80 | (code & 63))};
    }
    texts.push_back(rubbish);
    texts.push_back(valid);
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto tokens = tokenizer.encode_many(views);
  ASSERT_EQ(tokens.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.decode(tokens[i]), texts[i]) << i;
    int64_t bytes = 0;
    for (int32_t token : tokens[i]) {
      EXPECT_TRUE(token >= 0 && token < tokenizer.vocab_size() && token != tokenizer.end_of_text());
      bytes += tokenizer.token_bytes(token);
    }
    EXPECT_EQ(bytes, static_cast<int64_t>(texts[i].size())) << i;
  }
}

TEST(ByteTokenizer, IsBytesAndEndOfText) {
  const auto tokenizer = load_tokenizer("byte", "", {});
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
  EXPECT_EQ(tokenizer->name(), "byte");
  EXPECT_EQ(tokenizer->caveat(), "");
  EXPECT_EQ(tokenizer->encode("A\xff\n"), (std::vector<int32_t>{65, 255, 10}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{72, 256, 105}), "Hi");
  EXPECT_EQ(tokenizer->token_bytes(256), 0);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{257}), DataError);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), DataError);
  expect_round_trips(*tokenizer);
}

TEST(ByteTokenizer, SavesTheVocabularyThatHuggingFaceReads) {
  TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  tokenizer->save(folder.path());
  const auto json = parse_json(read_file(folder / "tokenizer.json"), "tokenizer.json");
  const auto& vocabulary = json["model"]["vocab"];
  ASSERT_EQ(vocabulary.size(), 257u);
  // Landmarks of GPT-2's alphabet: space and newline moved behind Latin-1, printable characters where they were.
  EXPECT_EQ(vocabulary["A"], 65);
  EXPECT_EQ(vocabulary["\""], 34);
  EXPECT_EQ(vocabulary["\\"], 92);
  EXPECT_EQ(vocabulary["\xc4\xa0"], 32);   // U+0120
  EXPECT_EQ(vocabulary["\xc4\x8a"], 10);   // U+010A
  EXPECT_EQ(vocabulary["\xc5\x83"], 173);  // U+0143
  EXPECT_EQ(vocabulary["\xc3\xbf"], 255);  // U+00FF
  const auto loaded = load_saved_tokenizer(folder.path());
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
  folder.write("tokenizer.json", "{}");
  EXPECT_THROW(load_saved_tokenizer(folder.path()), ConfigError);
  EXPECT_THROW(load_saved_tokenizer(folder / "nowhere"), ConfigError);
}

TEST(SentencePiece, TrainedModelsRoundTripAnyText) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder;
  const std::vector<std::string> files = {folder.write("a.txt", sample(4000, 1)),
                                          folder.write("b.txt", sample(4000, 2))};
  const auto tokenizer = load_tokenizer("train:420", folder / "work", files);
  EXPECT_EQ(tokenizer->vocab_size(), 420);
  EXPECT_EQ(tokenizer->caveat(), "");
  expect_round_trips(*tokenizer);
  const std::string text = sample(1000, 3);
  const auto tokens = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(tokens), text);
  EXPECT_LT(tokens.size() * 2, text.size());  // It did learn words.
  for (const char* digits : {"2026", "7"}) EXPECT_EQ(tokenizer->encode(digits).size(), std::string(digits).size());
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{tokenizer->end_of_text()}), "");
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{420}), DataError);
}

TEST(SentencePiece, TrainsOnceAndTheSameEveryTime) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder;
  const std::vector<std::string> files = {folder.write("a.txt", sample(3000, 1))};
  const std::vector<std::string> other = {folder.write("b.txt", sample(3000, 2))};
  const auto models = [&](const std::string& work) {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder / work)) found.push_back(entry.path());
    return found;
  };
  const auto first = load_tokenizer("train:300", folder / "one", files);
  const auto second = load_tokenizer("train:300", folder / "two", files);
  ASSERT_EQ(models("one").size(), 1u);
  EXPECT_EQ(read_file(models("one")[0]), read_file(models("two")[0]));
  EXPECT_EQ(first->fingerprint(), second->fingerprint());
  const auto written = std::filesystem::last_write_time(models("one")[0]);
  load_tokenizer("train:300", folder / "one", files);
  EXPECT_EQ(std::filesystem::last_write_time(models("one")[0]), written);
  EXPECT_NE(load_tokenizer("train:300", folder / "one", other)->fingerprint(), first->fingerprint());
  EXPECT_NE(load_tokenizer("train:310", folder / "one", files)->fingerprint(), first->fingerprint());
  EXPECT_EQ(models("one").size(), 3u);
}

TEST(SentencePiece, SavedModelNeedsNothingElse) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder, checkpoint;
  const std::vector<std::string> files = {folder.write("a.txt", sample(3000, 1))};
  const auto tokenizer = load_tokenizer("train:300", folder / "work", files);
  tokenizer->save(checkpoint.path());
  const auto tokens = tokenizer->encode("the compiler\nof tensors");
  std::filesystem::remove_all(folder / "work");
  const auto loaded = load_saved_tokenizer(checkpoint.path());
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(loaded->encode("the compiler\nof tensors"), tokens);
}

TEST(SentencePiece, RefusalsNameTheNearestLegalNumber) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder;
  const std::vector<std::string> tiny = {folder.write("a.txt", "hello hello hello\n")};
  const auto refusal = [&](const std::string& spec, const std::vector<std::string>& files) {
    return message_of<ConfigError>([&] { load_tokenizer(spec, folder / "work", files); });
  };
  const std::string high = refusal("train:5000", tiny);
  EXPECT_NE(high.find("too short for so many pieces; try \"train:2"), std::string::npos) << high;
  EXPECT_EQ(refusal(high.substr(high.rfind("train:"), 9), tiny), "") << high;  // The advice is right.
  const std::vector<std::string> files = {folder.write("b.txt", sample(3000, 1))};
  const std::string low = refusal("train:260", files);
  EXPECT_NE(low.find("characters alone take"), std::string::npos) << low;
  EXPECT_EQ(refusal(low.substr(low.rfind("train:"), 9), files), "") << low;
  EXPECT_NE(refusal("train:300", {folder.write("c.txt", "\n\n \n")}).find("holds no text"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_directory(folder / "work"));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "work"))
    EXPECT_EQ(entry.path().extension(), ".model") << "left behind by a failure";
}

TEST(LoadTokenizer, RefusesWhatItDoesNotKnow) {
  for (const char* spec : {"train:", "train:x", "train:80k", "train:100", "train:-5", "train:99999999999999999999",
                           "bytes", "missing.model", ""})
    EXPECT_NE(message_of<ConfigError>([&] {
                load_tokenizer(spec, "", std::vector<std::string>{"a"});
              }).find(fmt::format("data.tokenizer = \"{}\"", spec)),
              std::string::npos)
        << spec;
  EXPECT_NE(message_of<ConfigError>([] { load_tokenizer("train:300", "", {}); }).find("text files"), std::string::npos);
}

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
  // The dummy space before each line goes, a space within a line stays.
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
  // As Llama 2's: bytes, but a dummy space before each line.
  const auto llama = train("llama",
                           "--vocab_size=330 --model_type=bpe --byte_fallback --normalization_rule_name=identity "
                           "--remove_extra_whitespaces=false");
  EXPECT_EQ(llama->decode(llama->encode(text)), text);
  EXPECT_EQ(llama->caveat(), "text does not come back exactly: the model puts a space before each line");
  // As sentencepiece makes them by itself.
  const auto plain = train("plain", "--vocab_size=60 --hard_vocab_limit=false");
  EXPECT_EQ(plain->decode(plain->encode(text)), "the hacker of running kernel 2026 caf\xc3\xa9");
  for (const char* words : {"normalization table", "extra spaces", "no bytes", "no newline"})
    EXPECT_NE(plain->caveat().find(words), std::string::npos) << plain->caveat();
}

TEST(SentencePieceModel, DamageIsRefusedWithFileAndOffset) {
  const std::string good = small_model();
  int refused = 0;
  for (size_t size = 0; size < good.size(); ++size) {
    try {
      parse_sentencepiece_model(good.substr(0, size), "m.model");
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()).find("m.model: offset "), 0u);
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(good.size()) - 12);  // A cut between two fields is a shorter model.
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

TEST(Utf8, KnowsValidCharacters) {
  EXPECT_EQ(utf8_length("a"), 1u);
  EXPECT_EQ(utf8_length("\xc3\xa9x"), 2u);
  EXPECT_EQ(utf8_length("\xe2\x82\xac"), 3u);
  EXPECT_EQ(utf8_length("\xf0\x9f\x98\x80"), 4u);
  for (const char* bad : {"", "\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xe2\x28\xa1"})
    EXPECT_EQ(utf8_length(bad), 0u);
}

}  // namespace
}  // namespace orthant
