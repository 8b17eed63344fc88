#include "data/corpus.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "base/errors.h"
#include "data/loader.h"
#include "data/program.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant {
namespace {

std::string paragraphs(int count, char letter) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{} {}\n\n", std::string(60, letter), i);
  return text;
}

std::vector<int32_t> all_tokens(const IndexedDataset& dataset) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    std::vector<int32_t> part(dataset.document_length(i));
    dataset.read(i, 0, part);
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  return tokens;
}

std::string text_of(const IndexedDataset& dataset) { return make_byte_tokenizer()->decode(all_tokens(dataset)); }

class CorpusTest : public testing::Test {
 protected:
  Corpus open(std::vector<std::string> paths, double share = 0.0, const TextProgress& progress = {}) {
    return open_corpus({.paths = std::move(paths), .validation_share = share, .seed = 7, .work_dir = folder_ / "work"},
                       *tokenizer_, progress);
  }
  TempFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
};

TEST_F(CorpusTest, TextBecomesDocumentsWithEndOfTextAtTrueEndsOnly) {
  const std::string text = paragraphs(2000, 'a');
  const Corpus corpus = open({folder_.write("a.txt", text), folder_.write("b.txt", "short\n<|endoftext|>\nlast")});
  EXPECT_EQ(text_of(corpus.train), text + "short\nlast");
  const auto tokens = all_tokens(corpus.train);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 256), 3);
  EXPECT_EQ(tokens[text.size()], 256);
  EXPECT_EQ(tokens.back(), 256);
  EXPECT_EQ(corpus.train.num_documents(), static_cast<int64_t>(corpus.train_documents.size()));
  EXPECT_GT(corpus.train.num_documents(), 8);
  EXPECT_TRUE(corpus.validation_documents.empty());
}

TEST_F(CorpusTest, ASmallTextGivesDocumentsToHoldOut) {
  std::string dense;
  for (int i = 0; i < 300; ++i) dense += fmt::format("line {} without a blank one\n", i);
  const std::string haiku = "an old silent pond\na frog jumps into the pond\nsplash! silence again\n";
  const std::pair<std::string, int64_t> table[] = {{paragraphs(300, 'a'), 20}, {dense, 20}, {haiku, 3}};
  for (const auto& [text, least] : table) {
    const Corpus corpus = open({folder_.write("a.txt", text)}, 0.05);
    EXPECT_EQ(text_of(corpus.train), text);
    EXPECT_GE(corpus.train.num_documents(), least);
    EXPECT_LE(corpus.train.num_documents(), 60);
    EXPECT_GE(corpus.validation_documents.size(), 1u);
    EXPECT_EQ(corpus.validation_documents.size() + corpus.train_documents.size(),
              static_cast<size_t>(corpus.train.num_documents()));
  }
  // True documents are never cut, and a line is the least.
  EXPECT_EQ(open({folder_.write("a.txt", dense + "<|endoftext|>\n")}, 0.05).train.num_documents(), 1);
  EXPECT_EQ(open({folder_.write("a.txt", std::string(5000, 'a') + "\n")}, 0.05).train.num_documents(), 1);
}

TEST_F(CorpusTest, TheSecondTimeNothingIsTokenised) {
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
  EXPECT_EQ(second.train.fingerprint(), first.train.fingerprint());
  EXPECT_EQ(second.validation_documents, first.validation_documents);

  // Content counts, not names or times; a changed text is another corpus; a damaged cache is made again.
  EXPECT_TRUE(open({folder_.write("moved.txt", paragraphs(500, 'a'))}).from_cache);
  EXPECT_FALSE(open({folder_.write("a.txt", paragraphs(500, 'b'))}).from_cache);
}

TEST_F(CorpusTest, DamagedTokensAreMadeAgainAndNamed) {
  const std::string path = folder_.write("a.txt", paragraphs(500, 'a'));
  const std::string prefix = open({path}).train.prefix();
  const auto reopened = [&](const std::string& named) {
    testing::internal::CaptureStderr();
    const Corpus corpus = open({path});
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(text_of(corpus.train), paragraphs(500, 'a'));
    EXPECT_EQ(said.empty(), named.empty()) << said;
    if (!named.empty()) {
      EXPECT_TRUE(says(said, {"note: " + named + " is damaged", "made again"}));
    }
    return corpus.from_cache;
  };
  EXPECT_TRUE(reopened(""));
  std::filesystem::resize_file(prefix + ".bin", 100);
  EXPECT_FALSE(reopened(prefix + ".bin"));
  std::string tokens = slurp(prefix + ".bin");
  tokens[1000] ^= 1;  // Of the right size, and every token legal.
  spill(prefix + ".bin", tokens);
  EXPECT_FALSE(reopened(prefix + ".bin"));
  spill(prefix + ".idx.xxh3", "rubbish");
  EXPECT_FALSE(reopened(prefix + ".idx"));
  std::filesystem::remove(prefix + ".bin.xxh3");  // Its maker died: nothing to tell.
  EXPECT_FALSE(reopened(""));
  EXPECT_TRUE(reopened(""));
}

TEST_F(CorpusTest, TextThatChangesWhileItIsReadIsRefused) {
  const std::string path = folder_.write("a.txt", paragraphs(5, 'a'));
  bool changed = false;
  const TextProgress change = [&](int64_t, int64_t) {  // Called first between the two passes.
    if (!std::exchange(changed, true)) spill(path, paragraphs(5, 'b'));
  };
  EXPECT_TRUE(says(message_of<DataError>([&] { open({path}, 0.0, change); }), {path, "changed while it was being read"}));
  EXPECT_FALSE(open({path}).from_cache);
}

/// Bytes shifted by one: another tokenizer of the same size.
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

TEST_F(CorpusTest, AnotherTokenizerIsAnotherCorpus) {
  const std::string path = folder_.write("a.txt", "abc");
  EXPECT_EQ(all_tokens(open({path}).train), (std::vector<int32_t>{97, 98, 99, 256}));
  tokenizer_ = std::make_unique<ShiftedTokenizer>();
  EXPECT_EQ(all_tokens(open({path}).train), (std::vector<int32_t>{98, 99, 100, 256}));
}

TEST_F(CorpusTest, OfManyRanksAtOnceOneTokenises) {
  const std::string text = paragraphs(2000, 'a');
  const std::string path = folder_.write("a.txt", text);
  std::atomic<int> made = 0, right = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 6; ++rank)
    ranks.emplace_back([&] {
      const Corpus corpus = open({path});
      made += !corpus.from_cache;
      right += text_of(corpus.train) == text;
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(right, 6);
}

TEST_F(CorpusTest, GzipAndGlobsWork) {
  folder_.write("part-2.txt", "second");
  folder_.write("part-1.txt.gz", run_program({"gzip", "-c"}, "first ", "", "").output);
  std::filesystem::create_directory(folder_ / "part-3.txt");
  const std::vector<std::string> paths = {folder_ / "part-*", folder_ / "part-2.txt"};
  EXPECT_EQ(expand_paths(paths), (std::vector<std::string>{folder_ / "part-1.txt.gz", folder_ / "part-2.txt"}));
  EXPECT_EQ(text_of(open(paths).train), "first second");
}

TEST_F(CorpusTest, AMegatronPrefixIsTakenAsItIs) {
  IndexedDatasetWriter writer(folder_ / "tokens", 257);
  for (int i = 0; i < 40; ++i) writer.add_document(std::vector<int32_t>(10, i));
  writer.finish();
  for (const char* name : {"tokens", "tokens.idx", "tokens.bin"}) {
    const Corpus corpus = open({folder_ / name}, 0.25);
    EXPECT_EQ(corpus.train.prefix(), folder_ / "tokens");
    EXPECT_TRUE(corpus.from_cache);
    EXPECT_EQ(corpus.validation_documents.size(), 10u);
    EXPECT_EQ(corpus.train_documents.size(), 30u);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "work"));
  std::filesystem::remove(folder_ / "tokens.bin");
  EXPECT_THROW(open({folder_ / "tokens"}), ConfigError);
}

TEST_F(CorpusTest, ValidationFilesAreADatasetOfTheirOwn) {
  const Corpus corpus = open_corpus({.paths = {folder_.write("a.txt", "train")},
                                     .validation_paths = {folder_.write("v.txt", "held out")},
                                     .work_dir = folder_ / "work"},
                                    *tokenizer_);
  EXPECT_EQ(text_of(corpus.train), "train");
  EXPECT_EQ(text_of(corpus.validation), "held out");
  EXPECT_EQ(corpus.train_documents, std::vector<int64_t>{0});
  EXPECT_EQ(corpus.validation_documents, std::vector<int64_t>{0});
  const std::string message = message_of<ConfigError>([&] {
    open_corpus(
        {.paths = {folder_ / "a.txt"}, .validation_paths = {folder_ / "none.txt"}, .work_dir = folder_ / "work"},
        *tokenizer_);
  });
  EXPECT_EQ(message.find("data.validation = "), 0u) << message;
}

TEST_F(CorpusTest, BadInputSaysWhatWhereAndTheWayOut) {
  const auto refusal = [&](const std::vector<std::string>& paths) {
    return message_of<ConfigError>([&] { open(paths); });
  };
  const auto contains = [](const std::string& message, std::initializer_list<std::string> words) {
    for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
  };
  std::filesystem::create_directory(folder_ / "folder");
  contains(refusal({}), {"data.path names no file"});
  contains(refusal({folder_ / "none.txt"}), {folder_ / "none.txt", "no such file"});
  contains(refusal({folder_ / "*.none"}), {folder_ / "*.none", "matches no file"});
  contains(refusal({folder_ / "folder"}), {folder_ / "folder", "is a directory", "folder/*.txt"});
  contains(refusal({folder_.write("empty.txt", "")}), {folder_ / "empty.txt", "is an empty file"});
  contains(refusal({folder_.write("blank.txt", "\n \n\n")}), {folder_ / "blank.txt", "no text"});
  contains(refusal({folder_.write("fine.txt", "text"), folder_ / "empty.txt"}), {"empty.txt"});
  contains(message_of<ConfigError>(
               [&] { open_corpus({.paths = {folder_ / "fine.txt"}, .work_dir = folder_ / "empty.txt"}, *tokenizer_); }),
           {"job.dump_folder", folder_ / "empty.txt"});
  EXPECT_THROW(open({folder_ / "fine.txt"}, 1.0), ConfigError);
  EXPECT_THROW(open({folder_ / "fine.txt"}, -0.1), ConfigError);
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "work"))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << "left behind by a failure";
}

TEST_F(CorpusTest, AllOfARealTextReachesTheLoader) {
  const std::string text = paragraphs(3000, 'x');
  const Corpus corpus = open({folder_.write("a.txt", text)}, 0.1);
  const Loader train(corpus.train, corpus.train_documents, 64, 1, SampleOrder::kShuffled);
  const Loader validation(corpus.validation, corpus.validation_documents, 64, 1, SampleOrder::kSequential);
  EXPECT_EQ(train.num_tokens() + validation.num_tokens(), static_cast<int64_t>(text.size()) + 1);
  EXPECT_GT(validation.num_tokens(), 0);
}

TEST(HeldOutDocuments, AreAShareSpreadBySeed) {
  for (int64_t n : {2, 3, 10, 99, 1000})
    for (double share : {1e-9, 0.05, 0.5, 0.999}) {
      const auto held = held_out_documents(n, share, 3);
      const auto wanted = std::clamp<int64_t>(std::llround(share * static_cast<double>(n)), 1, n - 1);
      EXPECT_EQ(static_cast<int64_t>(held.size()), wanted);
      EXPECT_TRUE(std::is_sorted(held.begin(), held.end()));
      EXPECT_EQ(std::adjacent_find(held.begin(), held.end()), held.end());
      EXPECT_GE(held.front(), 0);
      EXPECT_LT(held.back(), n);
      EXPECT_EQ(held, held_out_documents(n, share, 3));
    }
  EXPECT_TRUE(held_out_documents(100, 0.0, 1).empty());
  EXPECT_TRUE(held_out_documents(1, 0.5, 1).empty());
  EXPECT_TRUE(held_out_documents(0, 0.5, 1).empty());
  EXPECT_NE(held_out_documents(1000, 0.05, 1), held_out_documents(1000, 0.05, 2));
  // Spread: no quarter of the documents holds more than half of those held out.
  const auto held = held_out_documents(1000, 0.1, 5);
  for (int64_t quarter = 0; quarter < 4; ++quarter)
    EXPECT_LT(std::count_if(held.begin(), held.end(), [&](int64_t i) { return i / 250 == quarter; }), 50);
}

TEST(TokenizeFiles, FillsAWriterWithWhatSentencePieceSays) {
  if (std::system("command -v spm_train >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "spm_train is not on PATH (apt-get install sentencepiece)";
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += fmt::format("the quick brown fox number {} jumps\n{}", i * 7 % 1000, i % 5 ? "" : "\n");
  const std::vector<std::string> files = {folder.write("a.txt", text)};
  const auto tokenizer = load_tokenizer("train:320", folder / "work", files);
  IndexedDatasetWriter writer(folder / "out", tokenizer->vocab_size());
  tokenize_files(files, *tokenizer, writer);
  writer.finish();
  const auto dataset = IndexedDataset::open(folder / "out", tokenizer->vocab_size());
  EXPECT_GT(dataset.num_documents(), 3);
  const auto tokens = all_tokens(dataset);
  EXPECT_EQ(tokenizer->decode(tokens), text);
  EXPECT_EQ(tokens.back(), tokenizer->end_of_text());
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), tokenizer->end_of_text()), 1);
}

}  // namespace
}  // namespace orthant
