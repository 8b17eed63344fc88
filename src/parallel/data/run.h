// Gradient reduction at run time: sums each gradient bucket as soon as backward has completed it. The sum is over the
// axes along which the bucket is partial: data, and the axes that shard sequences.
#pragma once

#include "comm/comm.h"
#include "parallel/data/plan.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace orthant {

/// The collective that sums a bucket. After a reduce-scatter only the rank's own chunk has sums, and the other elements
/// are undefined.
enum class Reduction { all_reduce, reduce_scatter };

/// Sums the flat gradient buffer in place, bucket by bucket, each over its axes. The reduction of a bucket starts when
/// its last gradient of the step has been written and all buckets after it have started. So the order is the same on
/// every rank. Over n ranks, each rank sends 2 (n-1)/n times a bucket's bytes per step, or half of that in a
/// reduce-scatter.
class GradientReducer {
 public:
  /// `flat` is the flat gradient buffer. uses[w] is the number of times that one microbatch adds to the gradient of
  /// weight w. The own chunk of a reduce-scatter is then summed over `copy_axes`, along which the sharded states have
  /// copies. The Comm must outlive the reducer.
  GradientReducer(Comm& comm, at::Tensor flat, std::vector<GradientBucket> buckets, std::vector<int> uses,
                  Reduction reduction = Reduction::all_reduce, Axes copy_axes = {});

  /// Begins a step in which this rank runs the given number of microbatches.
  void begin(int64_t microbatches);
  /// Records that an operator has added one microbatch's gradient to the weight. May start reductions.
  void written(int weight);
  /// Starts the bucket and all after it, if they have not started, and returns when the bucket is summed. -1 stands for
  /// all buckets. Throws LogicError if a gradient was written fewer times than the step's microbatches require.
  void finish(int bucket);

 private:
  void start_ready();
  void start(int bucket);

  Comm& comm_;
  at::Tensor flat_;
  std::vector<GradientBucket> buckets_;
  std::vector<int> uses_;
  std::vector<int> bucket_of_;       // bucket, by weight
  std::vector<int64_t> outstanding_; // writes still missing in this step, by bucket
  Reduction reduction_;
  Axes copy_axes_;
  std::vector<Work> work_;           // reductions that have started, by bucket
  int next_ = -1;                    // the bucket to start next; buckets start from the last to the first
};

/// All-gathers each bucket of a buffer with the layout of the gradients: every rank contributes its own chunk. Over n
/// ranks, each rank sends (n-1)/n times the buffer's bytes. All ranks must call it together.
void gather_chunks(Comm& comm, const std::vector<GradientBucket>& buckets, const at::Tensor& flat);

}  // namespace orthant
