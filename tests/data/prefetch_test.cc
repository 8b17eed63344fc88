// Prefetcher: expected batches are read once, on another thread, before they are asked for; errors arrive with the
// batch.
#include "data/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>

#include "base/errors.h"
#include "tests/support/says.h"

namespace orthant::prefetch_test {
namespace {

/// Samples of one token, which is the sample's number. It records which thread read each.
class RecordingSource : public SampleSource {
 public:
  int64_t num_samples() const override { return 100; }
  int64_t num_tokens() const override { return 100; }
  int64_t length(int64_t) const override { return 1; }
  int64_t num_labels(int64_t) const override { return 1; }
  std::vector<int64_t> read(int64_t sample, std::span<int64_t> tokens, std::span<int64_t> labels) const override {
    if (sample == bad) throw DataError("sample is damaged");
    const std::lock_guard lock(mutex);
    readers[sample].push_back(std::this_thread::get_id());
    changed.notify_all();
    tokens[0] = labels[0] = sample;
    return {0};
  }
  void wait_for(int64_t sample) const {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return readers.contains(sample); }));
  }

  int64_t bad = -1;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  mutable std::map<int64_t, std::vector<std::thread::id>> readers;
};

struct Ahead {
  std::shared_ptr<RecordingSource> source = std::make_shared<RecordingSource>();
  Loader loader{{source}, {1.0}, 1, 0, SampleOrder::kSequential};
  Prefetcher prefetch{loader};
};

TEST(Prefetcher, ReadsExpectedBatchesOnAnotherThread) {
  Ahead ahead;
  ahead.prefetch.expect({{0, 2}, {2, 2}});
  ahead.source->wait_for(3);
  EXPECT_EQ(ahead.prefetch.batch({2, 2}).tokens, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(ahead.prefetch.batch({0, 2}).tokens, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(ahead.prefetch.batch({0, 2}).tokens, (std::vector<int64_t>{0, 1}));  // as a second stage asks for it
  ahead.prefetch.expect({{2, 2}, {4, 1}});
  ahead.source->wait_for(4);
  EXPECT_EQ(ahead.prefetch.batch({2, 2}).tokens, (std::vector<int64_t>{2, 3}));
  for (const auto& [sample, readers] : ahead.source->readers) {
    EXPECT_EQ(readers.size(), 1u) << sample;
    EXPECT_NE(readers.front(), std::this_thread::get_id()) << sample;
  }
}

TEST(Prefetcher, ReadsUnexpectedBatchesAtOnce) {
  Ahead ahead;
  EXPECT_EQ(ahead.prefetch.batch({7, 1}).tokens, std::vector<int64_t>{7});
  ahead.prefetch.expect({{0, 1}});
  EXPECT_EQ(ahead.prefetch.batch({9, 1}).tokens, std::vector<int64_t>{9});
  EXPECT_EQ(ahead.source->readers[9].front(), std::this_thread::get_id());
}

TEST(Prefetcher, AnErrorArrivesWithItsBatchAlone) {
  Ahead ahead;
  ahead.source->bad = 1;
  ahead.prefetch.expect({{0, 1}, {1, 1}, {2, 1}});
  EXPECT_EQ(ahead.prefetch.batch({0, 1}).tokens, std::vector<int64_t>{0});
  EXPECT_EQ(message_of<DataError>([&] { ahead.prefetch.batch({1, 1}); }), "sample is damaged");
  EXPECT_EQ(ahead.prefetch.batch({2, 1}).tokens, std::vector<int64_t>{2});
}

// The end of a run does not wait for batches that are expected, and no batch is read after its loader is gone.
TEST(Prefetcher, EndsAtAnyTime) {
  for (int i = 0; i < 200; ++i) {
    Ahead ahead;
    ahead.prefetch.expect({{0, 5}, {5, 5}, {10, 80}});
    if (i % 2 == 0) ahead.prefetch.batch({5, 5});
    if (i % 3 == 0) ahead.prefetch.expect({{20, 5}});
  }
}

}  // namespace
}  // namespace orthant::prefetch_test
