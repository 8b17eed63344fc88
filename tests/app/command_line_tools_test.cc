// Commands that need no run (tokenize, doctor, plan --svg), called as functions: their files and their output.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands.h"
#include "base/errors.h"
#include "base/json.h"
#include "data/indexed_dataset.h"
#include "data/tokenizer.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_run.h"

namespace orthant::command_line_tools_test {
namespace {

template <typename Action>
std::string printed_by(Action action) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  action();
  std::fflush(stdout);
  testing::internal::GetCapturedStderr();
  return testing::internal::GetCapturedStdout();
}

TEST(Tokenize, WritesADatasetAndSaysHowToUseIt) {
  const TempFolder folder;
  spill(folder / "a.txt", "ab\n");
  spill(folder / "b.txt", "c\n<|endoftext|>\nd\n");
  const std::string prefix = folder / "out/both";
  const std::string text =
      printed_by([&] { EXPECT_EQ(tokenize({.inputs = {folder / "*.txt"}, .output = prefix + ".bin"}), kDone); });
  const IndexedDataset dataset = IndexedDataset::open(prefix, 257);
  EXPECT_EQ(dataset.num_documents(), 3);
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.document_length(0)));
  dataset.read(0, 0, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{'a', 'b', '\n', 256}));
  EXPECT_NE(text.find("path = [\"" + prefix + "\"]\n  tokenizer = \"byte\"\n"), std::string::npos) << text;
}

TEST(Tokenize, SaysWhatSeparatesDocuments) {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "a line of a few words\n\n";
  spill(folder / "plain.txt", lines);
  spill(folder / "marked.txt", "a\n<|endoftext|>\nb\n");
  const auto told = [&](const std::vector<std::string>& names) {
    std::vector<std::string> inputs;
    for (const std::string& name : names) inputs.push_back(folder / name);
    return printed_by([&] { EXPECT_EQ(tokenize({.inputs = inputs, .output = folder / "out"}), kDone); });
  };
  EXPECT_TRUE(says(told({"marked.txt"}),
                   {" tokens in 2 documents\n", "\ndocuments: a line that holds only <|endoftext|> ends a document"}));
  EXPECT_TRUE(says(told({"plain.txt"}),
                   {" tokens in 1 document\n", "each file is one document", "split at blank lines"}));
  const std::string both = told({"plain.txt", "marked.txt"});
  EXPECT_TRUE(says(both, {" tokens in 3 documents\n", "<|endoftext|> ends a document",
                          "every file without such a line is one document (1 file)"}));
}

TEST(Tokenize, LeavesOneFileOfATrainedTokenizer) {
  if (std::system("command -v spm_train >/dev/null 2>&1") != 0) GTEST_SKIP() << "spm_train is not on PATH";
  const TempFolder folder;
  std::filesystem::create_directories(folder / "in");
  spill(folder / "in/a.txt", markov_text(7, 6000));
  const std::string prefix = folder / "out/books";
  std::string text;
  for (int i = 0; i < 2; ++i) {
    text = printed_by([&] {
      EXPECT_EQ(tokenize({.inputs = {folder / "in/a.txt"}, .output = prefix, .tokenizer = "train:290"}), kDone);
    });
  }
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "out")) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"books.bin", "books.idx", "books.model"}));
  EXPECT_TRUE(says(text, {"tokenizer = \"" + prefix + ".model\"\n"}));
  const auto tokenizer = load_tokenizer(prefix + ".model", "", {});
  EXPECT_EQ(tokenizer->vocab_size(), 290);
  const IndexedDataset dataset = IndexedDataset::open(prefix, 290);
  std::string decoded;
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    std::vector<int32_t> tokens(static_cast<size_t>(dataset.document_length(i)));
    dataset.read(i, 0, tokens);
    decoded += tokenizer->decode(tokens);
  }
  EXPECT_EQ(decoded, slurp(folder / "in/a.txt"));
}

TEST(Tokenize, RefusesWhatIsNotThere) {
  const TempFolder folder;
  EXPECT_THROW(tokenize({.inputs = {folder / "none.txt"}, .output = folder / "out"}), ConfigError);
  spill(folder / "a.txt", "ab\n");
  EXPECT_THROW(tokenize({.inputs = {folder / "a.txt"}, .output = folder / "out/"}), ConfigError);
  EXPECT_THROW(tokenize({.inputs = {folder / "a.txt"}, .output = folder / "out", .tokenizer = "word"}), ConfigError);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.bin"));
}

TEST(Doctor, ReportsEveryCheck) {
  const std::string json = printed_by([] { EXPECT_EQ(doctor({.json = true, .measure_s = 0.1}), kDone); });
  const auto answer = parse_json(json, "doctor");
  std::set<std::string> names;
  bool all_ok = true;
  for (const auto& check : answer["checks"]) {
    names.insert(check["name"].get<std::string>());
    EXPECT_FALSE(check["found"].get<std::string>().empty()) << check["name"];
    EXPECT_EQ(check["ok"].get<bool>(), check["advice"].get<std::string>().empty());
    all_ok = all_ok && check["ok"].get<bool>();
  }
  EXPECT_EQ(answer["ok"].get<bool>(), all_ok);
  EXPECT_GE(answer["speed"]["threads"].get<int>(), 1);
  for (const char* figure : {"float32_gflops_one_thread", "float32_gflops_all_threads", "cpu_share"}) {
    EXPECT_GT(answer["speed"][figure].get<double>(), 0) << figure;
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"orthant", "cpu", "instructions", "memory", "libtorch", "threads", "products",
                                   "neighbors", "allocator", "launcher", "loopback", "/dev/shm", "ucx",
                                   "sentencepiece", "disk"}));
  const std::string text = printed_by([] { doctor({.measure_s = 0.1}); });
  for (const std::string& name : names) EXPECT_NE(text.find(" " + name + " "), std::string::npos) << text;
}

TEST(PlanCommand, SaysWhyAPictureCannotBeWritten) {
  const TempFolder folder;
  spill(folder / "text.txt", "a few words\n");
  PlanArguments arguments;
  arguments.run_file = folder / "run.toml";
  spill(arguments.run_file, "[run]\nranks = 2\n[data]\npath = \"" + (folder / "text.txt") + "\"\n");
  const auto message = [&](const std::string& svg) {
    arguments.svg = svg;
    std::string text;
    printed_by([&] { text = message_of<DataError>([&] { plan(arguments); }); });
    return text;
  };
  EXPECT_EQ(message(folder / "none/a.svg"),
            "--svg " + (folder / "none/a.svg") + ": cannot be written: No such file or directory");
  EXPECT_EQ(message(folder.path()), "--svg " + folder.path() + ": cannot be written: Is a directory");
  EXPECT_EQ(message("/dev/full"), "--svg /dev/full: cannot be written: No space left on device");
  EXPECT_EQ(message(folder / "a.svg"), "");
  EXPECT_TRUE(slurp(folder / "a.svg").starts_with("<svg"));
}

TEST(Doctor, NamesHalfALauncher) {
  ::setenv("RANK", "0", 1);
  const std::string text = printed_by([] { doctor({.measure_s = 0.1}); });
  ::unsetenv("RANK");
  EXPECT_NE(text.find("warning  launcher"), std::string::npos) << text;
  EXPECT_NE(text.find("WORLD_SIZE"), std::string::npos) << text;
}

}  // namespace
}  // namespace orthant::command_line_tools_test
