// open_corpus(): from text or Megatron files to training and validation documents. No token is lost, and bad input is
// named with a remedy.
#include "data/corpus.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/errors.h"
#include "data/program.h"
#include "data/text_samples.h"
#include "tests/data/corpus_fixture.h"

namespace orthant::corpus_test {
namespace {

TEST_F(CorpusTest, TextBecomesDocumentsWithEndOfTextAtTrueEndsOnly) {
  const std::string text = paragraphs(2000, 'a');
  const Corpus corpus = open({folder_.write("a.txt", text), folder_.write("b.txt", "short\n<|endoftext|>\nlast")});
  EXPECT_EQ(text_of(corpus.training[0].tokens), text + "short\nlast");
  const auto tokens = all_tokens(corpus.training[0].tokens);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 256), 3);
  EXPECT_EQ(tokens[text.size()], 256);
  EXPECT_EQ(tokens.back(), 256);
  EXPECT_EQ(corpus.training[0].tokens.num_documents(), static_cast<int64_t>(corpus.training[0].chosen.size()));
  EXPECT_GT(corpus.training[0].tokens.num_documents(), 8);
  EXPECT_TRUE(corpus.validation.empty());
}

TEST_F(CorpusTest, ASmallTextGivesDocumentsToHoldOut) {
  std::string dense;
  for (int i = 0; i < 300; ++i) dense += fmt::format("line {} without a blank one\n", i);
  const std::string haiku = "an old silent pond\na frog jumps into the pond\nsplash! silence again\n";
  const std::pair<std::string, int64_t> table[] = {{paragraphs(300, 'a'), 20}, {dense, 20}, {haiku, 3}};
  for (const auto& [text, least] : table) {
    const Corpus corpus = open({folder_.write("a.txt", text)}, 0.05);
    EXPECT_EQ(text_of(corpus.training[0].tokens), text);
    EXPECT_GE(corpus.training[0].tokens.num_documents(), least);
    EXPECT_LE(corpus.training[0].tokens.num_documents(), 60);
    EXPECT_GE(corpus.validation[0].chosen.size(), 1u);
    EXPECT_EQ(corpus.validation[0].chosen.size() + corpus.training[0].chosen.size(),
              static_cast<size_t>(corpus.training[0].tokens.num_documents()));
  }
  // Documents marked by separators are never split, and a line is the smallest unit.
  EXPECT_EQ(open({folder_.write("a.txt", dense + "<|endoftext|>\n")}, 0.05).training[0].tokens.num_documents(), 1);
  EXPECT_EQ(open({folder_.write("a.txt", std::string(5000, 'a') + "\n")}, 0.05).training[0].tokens.num_documents(), 1);
}

TEST_F(CorpusTest, GzipAndGlobsWork) {
  folder_.write("part-2.txt", "second");
  folder_.write("part-1.txt.gz", run_program({"gzip", "-c"}, "first ", "", "").output);
  std::filesystem::create_directory(folder_ / "part-3.txt");
  const std::vector<std::string> paths = {folder_ / "part-*", folder_ / "part-2.txt"};
  EXPECT_EQ(expand_paths(paths), (std::vector<std::string>{folder_ / "part-1.txt.gz", folder_ / "part-2.txt"}));
  EXPECT_EQ(text_of(open(paths).training[0].tokens), "first second");
}

TEST_F(CorpusTest, AMegatronPrefixIsTakenAsItIs) {
  IndexedDatasetWriter writer(folder_ / "tokens", 257);
  for (int i = 0; i < 40; ++i) writer.add_document(std::vector<int32_t>(10, i));
  writer.finish();
  for (const char* name : {"tokens", "tokens.idx", "tokens.bin"}) {
    const Corpus corpus = open({folder_ / name}, 0.25);
    EXPECT_EQ(corpus.training[0].tokens.prefix(), folder_ / "tokens");
    EXPECT_TRUE(corpus.from_cache);
    EXPECT_EQ(corpus.validation[0].chosen.size(), 10u);
    EXPECT_EQ(corpus.training[0].chosen.size(), 30u);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "work"));
  std::filesystem::remove(folder_ / "tokens.bin");
  EXPECT_THROW(open({folder_ / "tokens"}), ConfigError);
}

TEST_F(CorpusTest, ValidationFilesAreADatasetOfTheirOwn) {
  const Corpus corpus = open_corpus({.paths = {folder_.write("a.txt", "train")},
                                     .validation_sets = {{"", {folder_.write("v.txt", "held out")}}},
                                     .work_dir = folder_ / "work"},
                                    *tokenizer_);
  EXPECT_EQ(text_of(corpus.training[0].tokens), "train");
  EXPECT_EQ(text_of(corpus.validation[0].tokens), "held out");
  EXPECT_EQ(corpus.training[0].chosen, std::vector<int64_t>{0});
  EXPECT_EQ(corpus.validation[0].chosen, std::vector<int64_t>{0});
  const std::string message = message_of<ConfigError>([&] {
    open_corpus(
        {.paths = {folder_ / "a.txt"}, .validation_sets = {{"", {folder_ / "none.txt"}}}, .work_dir = folder_ / "work"},
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
  const auto samples = [](const Documents& documents) {
    return TextSamples(documents.tokens, documents.chosen, 64, TextLabel::kNextToken, "");
  };
  const TextSamples train = samples(corpus.training[0]), validation = samples(corpus.validation[0]);
  EXPECT_EQ(train.num_tokens() + validation.num_tokens(), static_cast<int64_t>(text.size()) + 1);
  EXPECT_GT(validation.num_tokens(), 0);
}

TEST(HeldOutDocuments, AreARandomFractionBySeed) {
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
  // Spread: no quarter of the documents contains half of those held out.
  const auto held = held_out_documents(1000, 0.1, 5);
  for (int64_t quarter = 0; quarter < 4; ++quarter)
    EXPECT_LT(std::count_if(held.begin(), held.end(), [&](int64_t i) { return i / 250 == quarter; }), 50);
}

TEST(TokenizeText, FillsAWriterWithWhatSentencePieceSays) {
  if (std::system("command -v spm_train >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "spm_train is not on PATH (apt-get install sentencepiece)";
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += fmt::format("the quick brown fox number {} jumps\n{}", i * 7 % 1000, i % 5 ? "" : "\n");
  const std::vector<std::string> files = {folder.write("a.txt", text)};
  const auto tokenizer = load_tokenizer("train:320", folder / "work", files);
  IndexedDatasetWriter writer(folder / "out", tokenizer->vocab_size());
  tokenize_text(scan_texts(files, {}), *tokenizer, writer);
  writer.finish();
  const auto dataset = IndexedDataset::open(folder / "out", tokenizer->vocab_size());
  EXPECT_GT(dataset.num_documents(), 3);
  const auto tokens = all_tokens(dataset);
  EXPECT_EQ(tokenizer->decode(tokens), text);
  EXPECT_EQ(tokens.back(), tokenizer->end_of_text());
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), tokenizer->end_of_text()), 1);
}

// A document of text that is cut into pieces begins once and ends once.
TEST(TokenizeText, MarksTheBeginningAndTheEndOfDocuments) {
  TempFolder folder;
  const auto tokenizer = load_tokenizer(
      folder.write("tokenizer.json",
                   R"({"added_tokens": [{"id": 0, "content": "<b>", "special": true, "normalized": false},
                                        {"id": 1, "content": "</s>", "special": true, "normalized": false}],
                       "post_processor": {"type": "TemplateProcessing",
                                          "single": [{"SpecialToken": {"id": "<b>"}}, {"Sequence": {"id": "A"}}],
                                          "special_tokens": {"<b>": {"ids": [0]}}},
                       "model": {"type": "BPE", "merges": [],
                                 "vocab": {"<b>": 0, "</s>": 1, "a": 2, "b": 3, "\n": 4}}})"),
      "", {});
  const auto tokens_of = [&](const std::string& name, const std::string& text, const TextFormat& format) {
    const std::vector<std::string> files = {folder.write(name, text)};
    IndexedDatasetWriter writer(folder / "out", tokenizer->vocab_size());
    const TokenizedText tokenized = tokenize_text(scan_texts(files, format), *tokenizer, writer);
    writer.finish();
    return std::pair(all_tokens(IndexedDataset::open(folder / "out", tokenizer->vocab_size())), tokenized.pieces);
  };
  EXPECT_EQ(
      tokens_of("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"b\"}\n", {.documents = DocumentFormat::kJsonl}).first,
      (std::vector<int32_t>{0, 2, 3, 1, 0, 3, 1}));
  std::string text;
  for (int line = 0; line < 1000; ++line) text += "abab\n\n";
  const auto [tokens, pieces] = tokens_of("b.txt", text, {});
  EXPECT_GT(pieces, 10);
  EXPECT_EQ(tokens.size(), text.size() + 2);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 0), 1);
  EXPECT_EQ(tokens.front(), 0);
  EXPECT_EQ(tokens.back(), 1);
}

}  // namespace
}  // namespace orthant::corpus_test
