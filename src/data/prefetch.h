// Reads batches on a thread of its own before they are needed, so that training does not wait for a slow disk.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "data/loader.h"

namespace orthant {

/// The samples [first, first + count) of a run.
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// Batches of a loader. Those of the expected ranges stay in memory until other ranges are expected, because several
/// stages of a rank may read the same one. One thread may call it.
class Prefetcher {
 public:
  /// The loader must outlive it.
  explicit Prefetcher(const Loader& loader);
  /// Waits for the batch that is being read.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Sets the ranges that will be needed, in this order, and begins to read them. Drops batches of other ranges.
  void expect(const std::vector<SampleRange>& ranges);
  /// loader.batch() of the range: one that was read ahead, or else read now. Throws DataError as loader.batch() does.
  Batch batch(const SampleRange& range);

 private:
  // A range and the task that reads it. The first thread that finds it not started runs the task.
  struct Slot {
    SampleRange range;
    std::packaged_task<Batch()> read;
    std::shared_future<Batch> batch;
    bool is_started = false;
  };

  void read_ahead();

  const Loader& loader_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Slot>> slots_;
  bool stops_ = false;
  std::thread thread_;  // starts with the first expected range
};

}  // namespace orthant
