// Texts that are hard for tokenizers, and a check that a tokenizer restores them exactly.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace orthant {

inline bool has_sentencepiece() {
  return std::system("command -v spm_train >/dev/null 2>&1 && command -v spm_encode >/dev/null 2>&1") == 0;
}
#define SKIP_WITHOUT_SENTENCEPIECE() \
  if (!has_sentencepiece()) GTEST_SKIP() << "spm_train and spm_encode are not on PATH (apt-get install sentencepiece)"

/// English-looking text from a fixed list of words, with accents, tabs and blank lines in between.
inline std::string sample(int words, uint32_t seed) {
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

inline const std::vector<std::string>& hard_texts() {
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

inline void expect_round_trips(const Tokenizer& tokenizer) {
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

}  // namespace orthant
