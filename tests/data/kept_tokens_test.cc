// Tokens cached in the work folder. One rank of several makes them, once. They are created again if the text or the
// tokenizer changes, or if they are damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>
#include <utility>

#include "tests/data/corpus_fixture.h"

namespace orthant::kept_tokens_test {
namespace {

using KeptTokens = CorpusTest;

TEST_F(KeptTokens, TheSecondTimeNothingIsTokenised) {
  const std::string path = folder_.write("a.txt", paragraphs(500, 'a'));
  int64_t last_done = -1, last_total = -1, calls = 0;
  const TextProgress progress = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last_done);
    EXPECT_LE(done, total);
    last_done = done, last_total = total, ++calls;
  };
  const Corpus first = open({path}, 0.1, progress);
  EXPECT_FALSE(first.from_cache);
  EXPECT_EQ(last_done, static_cast<int64_t>(paragraphs(500, 'a').size()));
  EXPECT_EQ(last_done, last_total);
  calls = 0;
  const Corpus second = open({path}, 0.1, progress);
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(second.training[0].tokens.fingerprint(), first.training[0].tokens.fingerprint());
  EXPECT_EQ(second.validation[0].chosen, first.validation[0].chosen);

  // The key of the cache is the content, not names or times.
  EXPECT_TRUE(open({folder_.write("moved.txt", paragraphs(500, 'a'))}).from_cache);
  EXPECT_FALSE(open({folder_.write("a.txt", paragraphs(500, 'b'))}).from_cache);
}

TEST_F(KeptTokens, DamagedTokensAreMadeAgainAndNamed) {
  const std::string path = folder_.write("a.txt", paragraphs(500, 'a'));
  const std::string prefix = open({path}).training[0].tokens.prefix();
  const auto reopened = [&](const std::string& named) {
    testing::internal::CaptureStderr();
    const Corpus corpus = open({path});
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(text_of(corpus.training[0].tokens), paragraphs(500, 'a'));
    EXPECT_EQ(said.empty(), named.empty()) << said;
    if (!named.empty()) {
      EXPECT_TRUE(says(said, {"note: " + named + " is damaged", "created again"}));
    }
    return corpus.from_cache;
  };
  EXPECT_TRUE(reopened(""));
  std::filesystem::resize_file(prefix + ".bin", 100);
  EXPECT_FALSE(reopened(prefix + ".bin"));
  std::string tokens = slurp(prefix + ".bin");
  tokens[1000] ^= 1;  // the size is right and every token is legal
  spill(prefix + ".bin", tokens);
  EXPECT_FALSE(reopened(prefix + ".bin"));
  spill(prefix + ".idx.xxh3", "rubbish");
  EXPECT_FALSE(reopened(prefix + ".idx"));
  std::filesystem::remove(prefix + ".bin.xxh3");  // the process that made it died, so nothing is reported
  EXPECT_FALSE(reopened(""));
  EXPECT_TRUE(reopened(""));
}

TEST_F(KeptTokens, TextThatChangesWhileItIsReadIsRefused) {
  const std::string path = folder_.write("a.txt", paragraphs(5, 'a'));
  bool changed = false;
  const TextProgress change = [&](int64_t, int64_t) {  // called for the first time between the two passes
    if (!std::exchange(changed, true)) spill(path, paragraphs(5, 'b'));
  };
  EXPECT_TRUE(
      says(message_of<DataError>([&] { open({path}, 0.0, change); }), {path, "changed while it was being read"}));
  EXPECT_FALSE(open({path}).from_cache);
}

/// Bytes shifted by one: another tokenizer with a vocabulary of the same size.
class ShiftedTokenizer : public Tokenizer {
 public:
  std::vector<std::vector<int32_t>> encode_many(std::span<const std::string_view> texts) const override {
    std::vector<std::vector<int32_t>> tokens;
    for (std::string_view text : texts) {
      tokens.emplace_back();
      for (char c : text) tokens.back().push_back((static_cast<uint8_t>(c) + 1) % 256);
    }
    return tokens;
  }
  std::string decode(std::span<const int32_t>) const override { return ""; }
  int32_t token_bytes(int32_t) const override { return 1; }
  int32_t vocab_size() const override { return 257; }
  int32_t end_of_text() const override { return 256; }
  std::string name() const override { return "shifted"; }
  uint64_t fingerprint() const override { return 1; }
  void save(const std::string&) const override {}
};

TEST_F(KeptTokens, AnotherTokenizerIsAnotherCorpus) {
  const std::string path = folder_.write("a.txt", "abc");
  EXPECT_EQ(all_tokens(open({path}).training[0].tokens), (std::vector<int32_t>{97, 98, 99, 256}));
  tokenizer_ = std::make_unique<ShiftedTokenizer>();
  EXPECT_EQ(all_tokens(open({path}).training[0].tokens), (std::vector<int32_t>{98, 99, 100, 256}));
}

// Six ranks open the same text at once: one tokenizes it, and all read the same tokens.
TEST_F(KeptTokens, OneOfManyRanksTokenizes) {
  const std::string text = paragraphs(2000, 'a');
  const std::string path = folder_.write("a.txt", text);
  std::atomic<int> made = 0, right = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 6; ++rank)
    ranks.emplace_back([&] {
      const Corpus corpus = open({path});
      made += !corpus.from_cache;
      right += text_of(corpus.training[0].tokens) == text;
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(right, 6);
}

}  // namespace
}  // namespace orthant::kept_tokens_test
