// Loader: samples are a function of seed and global index. No token is lost, and the order does not depend on the
// number of ranks, on batch sizes or on a resume.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/errors.h"
#include "data/text_samples.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::loader_test {
namespace {

/// Token k of the stream is k, so a sample shows its position in the stream.
class LoaderTest : public testing::Test {
 protected:
  IndexedDataset counting(std::vector<int> lengths) {
    IndexedDatasetWriter writer(folder_ / "d", 1 << 20);
    int32_t next = 0;
    for (int length : lengths) {
      std::vector<int32_t> tokens(length);
      std::iota(tokens.begin(), tokens.end(), next);
      next += length;
      writer.add_document(tokens);
    }
    writer.finish();
    return IndexedDataset::open(folder_ / "d", 1 << 20);
  }
  TempFolder folder_;
};

const Masking kMasking{.fraction = 0.3, .mask_token = 43, .key = 8};
const std::optional<Masking> kBothObjectives[] = {std::nullopt, kMasking};

std::vector<int64_t> all(int64_t n) {
  std::vector<int64_t> documents(n);
  std::iota(documents.begin(), documents.end(), 0);
  return documents;
}

Loader make_loader(const IndexedDataset& dataset, std::vector<int64_t> documents, int64_t seq_len, uint64_t seed,
                   SampleOrder order, std::optional<Masking> masking = {}) {
  const TextLabel label = masking ? TextLabel::kSameToken : TextLabel::kNextToken;
  const auto samples = std::make_shared<TextSamples>(dataset, std::move(documents), seq_len, label, "data.path");
  return {{samples}, {1.0}, seq_len, seed, order, masking};
}

TEST_F(LoaderTest, SequentialGoesThroughTheChosenDocumentsOnce) {
  const auto dataset = counting({5, 0, 4, 3, 1});
  // Documents 0, 1, 3 and 4 contain tokens 0..4, 9..11 and 12.
  const Loader loader = make_loader(dataset, {0, 1, 3, 4}, 3, 0, SampleOrder::kSequential);
  EXPECT_EQ(loader.num_tokens(), 9);
  ASSERT_EQ(loader.num_samples(), 3);
  const Batch batch = loader.batch(0, 4);
  EXPECT_EQ(batch.tokens, (std::vector<int64_t>{0, 1, 2, 3, 4, 9, 10, 11, 0, 0, 0, 0}));
  const int64_t no = kIgnoredLabel;
  EXPECT_EQ(batch.labels, (std::vector<int64_t>{1, 2, 3, 4, 9, 10, 11, 12, no, no, no, no}));
  EXPECT_EQ(batch.sample_ids, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(loader.valid_labels(0, 4), 8);
  EXPECT_EQ(loader.valid_labels(2, 1), 2);
  EXPECT_EQ(loader.valid_labels(3, 100), 0);
}

// Each epoch contains every label exactly once, in an order of its own that depends on the seed.
TEST_F(LoaderTest, AnEpochHasEveryLabelOnceInItsOwnOrder) {
  const auto dataset = counting({50, 1, 0, 77, 20});
  const Loader loader = make_loader(dataset, all(5), 7, 99, SampleOrder::kShuffled);
  const int64_t n = loader.num_samples();
  ASSERT_EQ(n, (148 - 1 + 6) / 7);
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const Batch batch = loader.batch(epoch * n, n);
    std::multiset<int64_t> labels;
    std::vector<int64_t> first_tokens;
    for (int64_t i = 0; i < n * 7; ++i) {
      if (batch.labels[i] == kIgnoredLabel) continue;
      labels.insert(batch.labels[i]);
      EXPECT_EQ(batch.labels[i], batch.tokens[i] + 1);
    }
    for (int64_t i = 0; i < n; ++i) first_tokens.push_back(batch.tokens[i * 7]);
    EXPECT_EQ(labels.size(), 147u);
    EXPECT_EQ(std::set<int64_t>(labels.begin(), labels.end()).size(), 147u);
    EXPECT_EQ(loader.valid_labels(epoch * n, n), 147);
    orders.push_back(first_tokens);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  const Loader other = make_loader(dataset, all(5), 7, 100, SampleOrder::kShuffled);
  EXPECT_NE(loader.batch(0, n).tokens, other.batch(0, n).tokens);
}

TEST_F(LoaderTest, ValidLabelsAgreesWithTheBatch) {
  const auto dataset = counting({31, 12});
  for (SampleOrder order : {SampleOrder::kShuffled, SampleOrder::kSequential})
    for (const auto& masking : kBothObjectives) {
      const Loader loader = make_loader(dataset, all(2), 4, 5, order, masking);
      for (int64_t first = 0; first < 30; ++first)
        for (int64_t count : {0, 1, 3, 11}) {
          const Batch batch = loader.batch(first, count);
          int64_t labels = 0;
          for (int64_t label : batch.labels) labels += label != kIgnoredLabel;
          EXPECT_EQ(loader.valid_labels(first, count), labels);
          EXPECT_TRUE(masking || loader.present_tokens(first, count) == labels);
        }
    }
}

TEST_F(LoaderTest, MaskedSamplesHoldEveryTokenOnce) {
  const auto dataset = counting({31, 12});
  const Loader loader = make_loader(dataset, all(2), 4, 5, SampleOrder::kSequential, kMasking);
  ASSERT_EQ(loader.num_samples(), 11);
  const Batch batch = loader.batch(0, 12);
  for (int64_t i = 0; i < 48; ++i) {
    const int64_t token = batch.tokens[i], label = batch.labels[i];
    EXPECT_EQ(label != kIgnoredLabel ? label : token, i < 43 ? i : 0);
  }
  EXPECT_EQ(batch.lengths, (std::vector<int64_t>{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 0}));
  EXPECT_EQ(loader.present_tokens(0, 12), 43);
  EXPECT_TRUE(loader.batch(0, 10).lengths.empty());
  EXPECT_TRUE(make_loader(dataset, all(2), 4, 5, SampleOrder::kSequential).batch(0, 12).lengths.empty());
}

TEST_F(LoaderTest, MasksDoNotDependOnBatchSize) {
  const auto dataset = counting({31, 12});
  const Loader loader = make_loader(dataset, all(2), 4, 5, SampleOrder::kShuffled, kMasking);
  const Batch whole = loader.batch(3, 30);
  for (int64_t count : {1, 2, 5}) {
    std::vector<int64_t> tokens, labels;
    for (int64_t first = 0; first < 30; first += count) {
      const Batch part = loader.batch(3 + first, count);
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
      labels.insert(labels.end(), part.labels.begin(), part.labels.end());
    }
    EXPECT_EQ(tokens, whole.tokens);
    EXPECT_EQ(labels, whole.labels);
  }
}

TEST_F(LoaderTest, EveryEpochMasksAnew) {
  const auto dataset = counting({40});
  const Loader loader = make_loader(dataset, {0}, 40, 5, SampleOrder::kShuffled, kMasking);
  ASSERT_EQ(loader.num_samples(), 1);
  const Batch batch = loader.batch(0, 3);
  const auto row = [&](int64_t g) {
    return std::vector(batch.labels.begin() + g * 40, batch.labels.begin() + (g + 1) * 40);
  };
  EXPECT_NE(row(0), row(1));
  EXPECT_NE(row(1), row(2));
}

/// The samples of `steps` steps from `first` on, in global order, as `ranks` ranks fetch them: each rank reads its own
/// uneven slice of the global batch, in microbatches.
std::vector<int64_t> run(const Loader& loader, int64_t first, int steps, int global_batch, int ranks, int local_batch) {
  std::vector<int64_t> stream;
  for (int step = 0; step < steps; ++step, first += global_batch)
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t begin = first + global_batch * rank / ranks, end = first + global_batch * (rank + 1) / ranks;
      for (int64_t at = begin; at < end; at += local_batch) {
        const Batch batch = loader.batch(at, std::min<int64_t>(local_batch, end - at));
        stream.insert(stream.end(), batch.tokens.begin(), batch.tokens.end());
        stream.insert(stream.end(), batch.labels.begin(), batch.labels.end());
        stream.insert(stream.end(), batch.sample_ids.begin(), batch.sample_ids.end());
      }
    }
  return stream;
}

TEST_F(LoaderTest, ResumingAtAnyNumberOfRanksContinuesTheSameOrder) {
  const auto dataset = counting({400, 123, 77});
  for (const auto& masking : kBothObjectives) {
    const auto make = [&](uint64_t seed) {
      return make_loader(dataset, all(3), 8, seed, SampleOrder::kShuffled, masking);
    };
    const int global_batch = 10;
    const auto whole = run(make(3), 0, 20, global_batch, 1, 1);
    for (int ranks : {1, 2, 3, 4, 8}) {
      EXPECT_EQ(run(make(3), 0, 20, global_batch, ranks, 1), whole) << ranks;
      for (int stop : {1, 7, 13}) {
        auto stream = run(make(3), 0, stop, global_batch, ranks, 1);
        const auto rest = run(make(3), stop * global_batch, 20 - stop, global_batch, 9 - ranks, 1);
        stream.insert(stream.end(), rest.begin(), rest.end());
        EXPECT_EQ(stream, whole) << ranks << " ranks until step " << stop;
      }
    }
    EXPECT_NE(run(make(4), 0, 20, global_batch, 1, 1), whole);
    EXPECT_EQ(run(make(3), 0, 4, global_batch, 2, 5), run(make(3), 0, 4, global_batch, 1, 5));
  }
}

TEST_F(LoaderTest, ASampleNeedsALabel) {
  const auto dataset = counting({8});
  EXPECT_EQ(make_loader(dataset, {0}, 100, 0, SampleOrder::kSequential).valid_labels(0, 1), 7);
  EXPECT_EQ(make_loader(dataset, {0}, 8, 0, SampleOrder::kShuffled, kMasking).num_samples(), 1);
  EXPECT_TRUE(says(message_of<ConfigError>([&] { make_loader(dataset, {}, 1, 0, SampleOrder::kSequential); }),
                   {"data.path: 0 tokens in 0 documents, but a sample takes at least 2"}));
}

TEST_F(LoaderTest, ABadTokenStopsTheBatchThatHoldsIt) {
  counting({20});
  const auto dataset = IndexedDataset::open(folder_ / "d", 15);
  const Loader loader = make_loader(dataset, {0}, 5, 0, SampleOrder::kSequential);
  EXPECT_NO_THROW(loader.batch(0, 2));
  const std::string message = message_of<DataError>([&] { loader.batch(2, 1); });
  EXPECT_NE(message.find("document 0, position 15"), std::string::npos) << message;
}

}  // namespace
}  // namespace orthant::loader_test
