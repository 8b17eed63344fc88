// Megatron's .bin/.idx format: golden bytes, round trips in every width, and files of other writers. Every wrong field
// is refused with its offset.
#include "data/indexed_dataset.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "base/errors.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::indexed_dataset_test {
namespace {

std::string bytes(std::initializer_list<int> values) {
  std::string out;
  for (int value : values) out += static_cast<char>(value);
  return out;
}

template <typename T>
std::string raw(std::initializer_list<T> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T));
}

std::vector<int32_t> document(const IndexedDataset& dataset, int64_t i) {
  std::vector<int32_t> tokens(dataset.document_length(i));
  dataset.read(i, 0, tokens);
  return tokens;
}

/// The bytes of an index, built from the format's description and independently of the writer.
std::string make_index(uint8_t code, std::initializer_list<int32_t> lengths, std::initializer_list<int64_t> pointers,
                       std::initializer_list<int64_t> documents) {
  return std::string("MMIDIDX\0\0", 9) + raw<uint64_t>({1}) + static_cast<char>(code) +
         raw<uint64_t>({lengths.size()}) + raw<uint64_t>({documents.size()}) + raw(lengths) + raw(pointers) +
         raw(documents);
}

TEST(IndexedDataset, GoldenBytes) {
  TempFolder folder;
  IndexedDatasetWriter writer(folder / "sub/gold", 1000);
  writer.add_document(std::vector<int32_t>{1, 2, 999});
  writer.add_document(std::vector<int32_t>{256});
  writer.finish();
  EXPECT_EQ(slurp(folder / "sub/gold.bin"), bytes({1, 0, 2, 0, 0xe7, 3, 0, 1}));
  EXPECT_EQ(slurp(folder / "sub/gold.idx"),
            std::string("MMIDIDX\0\0", 9) +
                bytes({1, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0}) +
                bytes({3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0}) +
                bytes({0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(IndexedDataset, RoundTripsInEveryWidth) {
  TempFolder folder;
  std::mt19937 random(1);
  const std::vector<std::pair<int64_t, int>> widths = {{2, 1},     {256, 1},   {257, 2},
                                                       {65499, 2}, {65500, 4}, {1 << 30, 4}};
  for (const auto& [vocab_size, width] : widths) {
    std::vector<std::vector<int32_t>> documents;
    IndexedDatasetWriter writer(folder / "round", vocab_size);
    int64_t total = 0;
    for (int length : {0, 1, 7, 0, 1000, 3}) {
      std::vector<int32_t> tokens(length);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab_size);
      if (length > 0) tokens.back() = static_cast<int32_t>(vocab_size - 1);
      writer.add_document(tokens);
      documents.push_back(std::move(tokens));
      total += length;
    }
    writer.finish();
    EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(folder / "round.bin")), total * width) << vocab_size;
    const auto dataset = IndexedDataset::open(folder / "round", vocab_size);
    ASSERT_EQ(dataset.num_documents(), 6);
    EXPECT_EQ(dataset.num_tokens(), total);
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(document(dataset, i), documents[i]) << vocab_size << " " << i;
    std::vector<int32_t> part(10);
    dataset.read(4, 500, part);
    EXPECT_EQ(part, std::vector<int32_t>(documents[4].begin() + 500, documents[4].begin() + 510));
  }
}

TEST(IndexedDataset, ReadsOtherWritersTypes) {
  TempFolder folder;
  const auto check = [&](uint8_t code, int width, const std::string& tokens) {
    // Two documents, of two sequences and of one, followed by the mode bytes of multimodal files.
    folder.write("d.idx", make_index(code, {1, 1, 2}, {0, width, 2 * width}, {0, 2, 3}) + bytes({0, 0, 0}));
    folder.write("d.bin", tokens);
    const auto dataset = IndexedDataset::open(folder / "d", 200);
    ASSERT_EQ(dataset.num_documents(), 2);
    EXPECT_EQ(document(dataset, 0), (std::vector<int32_t>{5, 6})) << int{code};
    EXPECT_EQ(document(dataset, 1), (std::vector<int32_t>{7, 100})) << int{code};
  };
  check(1, 1, raw<uint8_t>({5, 6, 7, 100}));
  check(2, 1, raw<int8_t>({5, 6, 7, 100}));
  check(3, 2, raw<int16_t>({5, 6, 7, 100}));
  check(4, 4, raw<int32_t>({5, 6, 7, 100}));
  check(5, 8, raw<int64_t>({5, 6, 7, 100}));
  check(8, 2, raw<uint16_t>({5, 6, 7, 100}));
}

TEST(IndexedDataset, TokensOutsideTheVocabularyAreNamed) {
  TempFolder folder;
  folder.write("d.idx", make_index(4, {2, 3}, {0, 8}, {0, 1, 2}));
  folder.write("d.bin", raw<int32_t>({1, 2, 3, 300, -4}));
  const auto dataset = IndexedDataset::open(folder / "d", 300);
  const std::string message = message_of<DataError>([&] { document(dataset, 1); });
  EXPECT_EQ(message.find((folder / "d.bin") + ": offset 12: document 1, position 1: token 300"), 0u) << message;
  std::vector<int32_t> one(1);
  EXPECT_NO_THROW(dataset.read(1, 0, one));
  EXPECT_THROW(dataset.read(1, 2, one), DataError);  // -4
  const auto larger = IndexedDataset::open(folder / "d", 301);
  EXPECT_NO_THROW(larger.read(1, 1, one));
  folder.write("wide.idx", make_index(5, {1}, {0}, {0, 1}));
  folder.write("wide.bin", raw<int64_t>({int64_t{1} << 32}));
  EXPECT_THROW(IndexedDataset::open(folder / "wide").read(0, 0, one), DataError);
  EXPECT_THROW(dataset.read(1, 3, one), LogicError);
  EXPECT_THROW(dataset.read(2, 0, one), LogicError);
}

TEST(IndexedDataset, EveryWrongFieldIsRefusedAtItsOffset) {
  TempFolder folder;
  const std::string good = make_index(8, {2, 3}, {0, 4}, {0, 1, 2});
  folder.write("d.bin", std::string(10, '\1'));
  const auto refusal = [&](const std::string& index) {
    folder.write("d.idx", index);
    return message_of<DataError>([&] { IndexedDataset::open(folder / "d"); });
  };
  const auto changed = [&](size_t at, const std::string& with) {
    return std::string(good).replace(at, with.size(), with);
  };
  EXPECT_EQ(refusal(good), "");
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {changed(0, "X"), 0, "magic"},
      {changed(9, bytes({2})), 9, "version 2"},
      {changed(17, bytes({6})), 17, "type code 6"},
      {changed(18, raw<uint64_t>({uint64_t{1} << 63})), 18, "do not fit"},
      {changed(26, raw<uint64_t>({0})), 26, "do not fit"},
      {changed(26, raw<uint64_t>({1000})), 26, "do not fit"},
      {changed(34, raw<int32_t>({-1})), 34, "length -1"},
      {changed(42, raw<int64_t>({2})), 42, "expected 0"},
      {changed(50, raw<int64_t>({6})), 50, "expected 4"},
      {changed(58, raw<int64_t>({1})), 58, "expected 0"},
      {changed(66, raw<int64_t>({3})), 66, "from 0 to 2"},
      {changed(66, raw<int64_t>({-1})), 66, "from 0 to 2"},
      {changed(74, raw<int64_t>({1})), 74, "expected 2"},
      {good + bytes({0}), 82, "1 bytes follow"},
  };
  for (const auto& [index, offset, words] : cases) {
    const std::string message = refusal(index);
    EXPECT_EQ(message.find(fmt::format("{}: offset {}: ", folder / "d.idx", offset)), 0u) << words << " | " << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
}

TEST(IndexedDataset, TruncationAtEveryByteIsRefused) {
  TempFolder folder;
  IndexedDatasetWriter writer(folder / "d", 1000);
  for (int length : {3, 0, 5}) writer.add_document(std::vector<int32_t>(length, 7));
  writer.finish();
  const std::string idx = slurp(folder / "d.idx"), bin = slurp(folder / "d.bin");
  for (size_t size = 0; size < idx.size(); ++size) {
    folder.write("d.idx", idx.substr(0, size));
    EXPECT_THROW(IndexedDataset::open(folder / "d"), DataError) << size;
  }
  folder.write("d.idx", idx);
  for (size_t size = 0; size < bin.size(); ++size) {
    folder.write("d.bin", bin.substr(0, size));
    const std::string message = message_of<DataError>([&] { IndexedDataset::open(folder / "d"); });
    EXPECT_EQ(message.find(fmt::format("{}: offset {}: ", folder / "d.bin", size)), 0u) << message;
  }
  folder.write("d.bin", bin + "x");
  EXPECT_THROW(IndexedDataset::open(folder / "d"), DataError);
  folder.write("d.bin", bin);
  EXPECT_NO_THROW(IndexedDataset::open(folder / "d"));
}

TEST(IndexedDataset, RandomDamageIsRefusedOrStaysInBounds) {
  TempFolder folder;
  IndexedDatasetWriter writer(folder / "d", 1000);
  std::mt19937 random(3);
  for (int i = 0; i < 6; ++i) writer.add_document(std::vector<int32_t>(random() % 5, 9));
  writer.finish();
  const std::string good = slurp(folder / "d.idx");
  int refused = 0, opened = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string damaged = good;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips)
      damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    folder.write("d.idx", damaged);
    try {
      const auto dataset = IndexedDataset::open(folder / "d");
      int64_t tokens = 0;
      for (int64_t i = 0; i < dataset.num_documents(); ++i) tokens += static_cast<int64_t>(document(dataset, i).size());
      ASSERT_EQ(tokens, dataset.num_tokens());
      ++opened;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 3000);
  EXPECT_GT(opened, 0);  // flips that are still consistent, such as a document boundary moved by one
}

TEST(IndexedDatasetWriter, LeavesNothingBehindUnlessFinished) {
  TempFolder folder;
  {
    IndexedDatasetWriter writer(folder / "d", 10);
    writer.add_document(std::vector<int32_t>{1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(IndexedDataset::open(folder / "d"), ConfigError);
  IndexedDatasetWriter writer(folder / "d", 10);
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{10}), LogicError);
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{-1}), LogicError);
  writer.finish();
  EXPECT_EQ(IndexedDataset::open(folder / "d").num_documents(), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(IndexedDatasetWriter, RemovesWhatADeadWriterOfTheSameNameLeft) {
  TempFolder folder;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  const std::string left = folder.write(fmt::format("d.bin.tmp{}", dead), "half"),
                    other = folder.write(fmt::format("e.bin.tmp{}", dead), "half");
  IndexedDatasetWriter writer(folder / "d", 10);
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(other)) << "perhaps another machine's, at work";
}

TEST(IndexedDatasetWriter, AFullDiskIsAnErrorAndTheOldDatasetStays) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full to write to";
  TempFolder folder;
  IndexedDatasetWriter first(folder / "d", 10);
  first.add_document(std::vector<int32_t>{1, 2});
  first.finish();
  const std::string temporary = folder / fmt::format("d.bin.tmp{}", ::getpid());
  // One token fails only at the flush, 2^20 tokens already at the write.
  for (size_t tokens : {size_t{1}, size_t{1} << 20}) {
    std::filesystem::create_symlink("/dev/full", temporary);
    IndexedDatasetWriter second(folder / "d", 10);
    const std::vector<int32_t> large(tokens, 3);
    std::string message = message_of<DataError>([&] { second.add_document(large); });
    EXPECT_EQ(message.empty(), tokens == 1);
    if (message.empty()) message = message_of<DataError>([&] { second.finish(); });
    EXPECT_NE(message.find("No space left"), std::string::npos) << message;
  }
  EXPECT_EQ(document(IndexedDataset::open(folder / "d"), 0), (std::vector<int32_t>{1, 2}));
}

TEST(IndexedDataset, FingerprintTellsDatasetsApart) {
  TempFolder folder;
  const auto make = [&](const std::string& name, int length) {
    IndexedDatasetWriter writer(folder / name, 10);
    writer.add_document(std::vector<int32_t>(length, 1));
    writer.finish();
    return IndexedDataset::open(folder / name).fingerprint();
  };
  EXPECT_EQ(make("a", 5), make("b", 5));
  EXPECT_NE(make("a", 5), make("c", 6));
}

}  // namespace
}  // namespace orthant::indexed_dataset_test
