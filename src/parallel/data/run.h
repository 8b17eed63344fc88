// Data parallelism, the doing: gradient buckets are summed over the axes along which they are
// partial (data, and those that cut sequences) as soon as backward has completed them.
#pragma once

#include "comm/comm.h"
#include "parallel/data/plan.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace orthant {

/// Sums the flat gradient buffer bucket by bucket, each over its axes, in place. A bucket's all-reduce starts when its
/// last gradient of the step has been written and every later bucket's has started: the same order on every rank.
/// Sends, a step and rank, 2 (n-1)/n of a bucket's bytes.
class GradientReducer {
 public:
  /// uses[w]: how often one microbatch adds to weight w's gradient. The Comm must outlive it.
  GradientReducer(Comm& comm, at::Tensor flat, std::vector<GradientBucket> buckets, std::vector<int> uses);

  /// A step begins in which this rank runs so many microbatches.
  void begin(int64_t microbatches);
  /// An operator has added one microbatch's share to weight w.
  void written(int weight);
  /// Returns when the bucket is summed; starts it (and later ones) if it has not been. -1: all buckets. LogicError
  /// where a gradient has not been written as often as the step's microbatches do.
  void finish(int bucket);
  /// Negative controls for tests: the bucket is never summed; gradients that were not written go unnoticed.
  void drop(int bucket) { dropped_ = bucket; }
  void accept_lost() { accepts_lost_ = true; }

 private:
  void start_ready();
  void start(int bucket);

  Comm& comm_;
  at::Tensor flat_;
  std::vector<GradientBucket> buckets_;
  std::vector<int> uses_;
  std::vector<int> bucket_of_;       // by weight
  std::vector<int64_t> outstanding_; // writes that are still to come, by bucket
  std::vector<Work> work_;           // by bucket, once started
  int next_ = -1;                    // the bucket to start next; they start from the last to the first
  int dropped_ = -1;
  bool accepts_lost_ = false;
};

}  // namespace orthant
