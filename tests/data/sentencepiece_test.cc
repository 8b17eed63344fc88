// SentencePiece models that we train: they restore every text exactly, are trained once, and are the same every time.
#include "data/sentencepiece.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "data/huggingface.h"
#include "tests/data/tokenizer_texts.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::sentencepiece_test {
namespace {

TEST(SentencePiece, TrainedModelsRoundTripAnyText) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder;
  const std::vector<std::string> files = {folder.write("a.txt", sample(4000, 1)),
                                          folder.write("b.txt", sample(4000, 2))};
  const auto tokenizer = load_tokenizer("train:420", folder / "work", files, {});
  EXPECT_EQ(tokenizer->vocab_size(), 420);
  EXPECT_EQ(tokenizer->caveat(), "");
  expect_round_trips(*tokenizer);
  const std::string text = sample(1000, 3);
  const auto tokens = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(tokens), text);
  EXPECT_LT(tokens.size() * 2, text.size());  // the model has learned words
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
    for (const auto& entry : std::filesystem::directory_iterator(folder / work))
      if (entry.path().extension() == ".model") found.push_back(entry.path());
    return found;
  };
  const auto first = load_tokenizer("train:300", folder / "one", files);
  const auto second = load_tokenizer("train:300", folder / "two", files);
  ASSERT_EQ(models("one").size(), 1u);
  EXPECT_EQ(slurp(models("one")[0]), slurp(models("two")[0]));
  EXPECT_EQ(first->fingerprint(), second->fingerprint());
  const auto written = std::filesystem::last_write_time(models("one")[0]);
  load_tokenizer("train:300", folder / "one", files);
  EXPECT_EQ(std::filesystem::last_write_time(models("one")[0]), written);
  EXPECT_NE(load_tokenizer("train:300", folder / "one", other)->fingerprint(), first->fingerprint());
  EXPECT_NE(load_tokenizer("train:310", folder / "one", files)->fingerprint(), first->fingerprint());
  EXPECT_EQ(models("one").size(), 3u);
}

TEST(SentencePiece, ADamagedModelIsTrainedAgain) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder;
  const std::vector<std::string> files = {folder.write("a.txt", sample(3000, 1))};
  FileReadings readings;
  const std::string path = train_sentencepiece(300, folder / "work", files, {}, readings);
  const std::string whole = slurp(path);
  std::string damaged = whole;
  damaged[damaged.size() / 2] ^= 1;
  spill(path, damaged);
  testing::internal::CaptureStderr();
  EXPECT_EQ(train_sentencepiece(300, folder / "work", files, {}, readings), path);
  EXPECT_TRUE(says(testing::internal::GetCapturedStderr(), {"note: " + path + " is damaged", "created again"}));
  EXPECT_TRUE(slurp(path) == whole);
}

TEST(SentencePiece, SavesWhatHuggingFaceReadsForPlainModelsOnly) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder;
  const std::vector<std::string> files = {folder.write("a.txt", sample(3000, 1))};
  const auto tokenizer = load_tokenizer("train:300", folder / "work", files, {});
  tokenizer->save(folder.path());
  const auto json = parse_json(slurp(folder / "tokenizer.json"), "tokenizer.json");
  const auto& vocabulary = json["model"]["vocab"];
  ASSERT_EQ(vocabulary.size(), 300u);
  EXPECT_EQ(json["added_tokens"][0]["id"], tokenizer->end_of_text());
  EXPECT_EQ(vocabulary["<|endoftext|>"], tokenizer->end_of_text());
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{vocabulary["<0x0A>"].get<int32_t>()}), "\n");
  ASSERT_GT(json["model"]["merges"].size(), 10u);
  for (const auto& merge : json["model"]["merges"])
    EXPECT_TRUE(vocabulary.contains(merge[0].get<std::string>() + merge[1].get<std::string>())) << merge;
  EXPECT_NE(slurp(folder / "tokenizer_config.json").find("PreTrainedTokenizerFast"), std::string::npos);

  SentencePieceModel model = parse_sentencepiece_model(slurp(folder / "tokenizer.model"), "m");
  EXPECT_TRUE(is_plain_bpe(model));
  for (const auto& change : std::vector<std::function<void(SentencePieceModel&)>>{
           [](auto& m) { m.kind = 1; }, [](auto& m) { m.add_dummy_prefix = true; },
           [](auto& m) { m.has_normalization = true; }, [](auto& m) { m.remove_extra_whitespaces = true; },
           [](auto& m) { m.pieces.back().type = SentencePieceModel::kUser; },
           [](auto& m) { m.pieces.erase(m.pieces.begin() + 5); },  // one of the 256 byte pieces
           [](auto& m) { m.pieces.back().text = "\xff"; }}) {
    SentencePieceModel other = model;
    change(other);
    EXPECT_FALSE(is_plain_bpe(other));
  }
}

TEST(SentencePiece, SavedModelNeedsNothingElse) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder, checkpoint;
  const std::vector<std::string> files = {folder.write("a.txt", sample(3000, 1))};
  const auto tokenizer = load_tokenizer("train:300", folder / "work", files, {});
  tokenizer->save(checkpoint.path());
  const auto tokens = tokenizer->encode("the compiler\nof tensors");
  std::filesystem::remove_all(folder / "work");
  const auto loaded = load_saved_tokenizer(checkpoint.path());
  EXPECT_EQ(loaded->encode("the compiler\nof tensors"), tokens);  // from tokenizer.json, as transformers reads it
  std::filesystem::remove(checkpoint.path() + "/tokenizer.json");
  EXPECT_EQ(load_saved_tokenizer(checkpoint.path())->fingerprint(), tokenizer->fingerprint());
}

TEST(SentencePiece, RefusalsNameTheNearestLegalNumber) {
  SKIP_WITHOUT_SENTENCEPIECE();
  TempFolder folder;
  const std::vector<std::string> tiny = {folder.write("a.txt", "hello hello hello\n")};
  const auto refusal = [&](const std::string& spec, const std::vector<std::string>& files) {
    return message_of<ConfigError>([&] { load_tokenizer(spec, folder / "work", files, {}); });
  };
  const std::string high = refusal("train:5000", tiny);
  EXPECT_TRUE(says(high, {"too short for this number of pieces; set data.tokenizer to \"train:2"}));
  EXPECT_EQ(refusal(high.substr(high.rfind("train:"), 9), tiny), "") << high;  // the advice is correct
  const std::vector<std::string> files = {folder.write("b.txt", sample(3000, 1))};
  const std::string low = refusal("train:260", files);
  EXPECT_NE(low.find("characters of the text alone need"), std::string::npos) << low;
  EXPECT_EQ(refusal(low.substr(low.rfind("train:"), 9), files), "") << low;
  EXPECT_NE(refusal("train:300", {folder.write("c.txt", "\n\n \n")}).find("holds no text"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_directory(folder / "work"));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "work"))
    EXPECT_TRUE(entry.path().extension() == ".model" || entry.path().extension() == ".xxh3")
        << "left behind: " << entry;
}

}  // namespace
}  // namespace orthant::sentencepiece_test
