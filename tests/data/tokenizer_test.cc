// The byte tokenizer and its Hugging Face form, loading of tokenizers by name, and UTF-8 lengths.
#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "data/utf8.h"
#include "tests/data/tokenizer_texts.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::tokenizer_test {
namespace {

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
  const auto json = parse_json(slurp(folder / "tokenizer.json"), "tokenizer.json");
  const auto& vocabulary = json["model"]["vocab"];
  ASSERT_EQ(vocabulary.size(), 257u);
  // Characters of GPT-2's alphabet: space and newline are moved behind Latin-1, printable characters keep their code
  // points.
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
  EXPECT_THROW(load_saved_tokenizer(folder.path()), DataError);
  EXPECT_THROW(load_saved_tokenizer(folder / "nowhere"), ConfigError);
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
}  // namespace orthant::tokenizer_test
