// Weights and gradients that exist in full only while passes need them (ZeRO stages 2 and 3, and updates in backward):
// carries out UNSHARD, RESHARD and REDUCE.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "model/weights.h"
#include "parallel/data/plan.h"
#include "parallel/data/run.h"

namespace orthant {

/// Gathers the weights of a bucket from the chunks of all ranks, and reduces its gradients to the rank's own chunk. A
/// bucket is a segment of the Weights with the same number. Only one bucket is in reduction at a time. If every
/// backward is followed by a reduction, a rank holds the gradients of two units in full.
class ShardedStates {
 public:
  /// in_unit[b]: true if bucket b belongs to a unit, so that its memory is freed between passes; all others stay
  /// allocated. uses[w] is the number of times that one microbatch adds to the gradient of weight w. The own chunk of a
  /// reduce-scatter is then summed over `copy_axes`, along which the sharded states have copies. Comm and weights must
  /// outlive it.
  ShardedStates(Comm& comm, Weights& weights, std::vector<GradientBucket> buckets, std::vector<bool> in_unit,
                std::vector<int> uses, Reduction reduction, Axes copy_axes);

  /// Must be set if the weights keep no gradients: called with each bucket when its gradients are summed over all
  /// ranks, before they are freed. All ranks of a bucket call it in the same order.
  std::function<void(int bucket)> on_summed;

  /// Allocates the bucket's weights and starts their all-gather: over n ranks, (n-1)/n of their bytes from each. All
  /// ranks of the bucket's axes must call it in the same order.
  void unshard(int bucket);
  /// Returns when the weights have arrived.
  void wait_for(int bucket);
  void reshard(int bucket);
  /// Frees all gathered weights, because the owned values have changed.
  void reshard_all();
  /// After an update: gathers the weights that stay allocated.
  void gather_resident_weights();

  /// Begins a step in which this rank runs the given number of microbatches.
  void begin(int64_t microbatches);
  /// Allocates the bucket's gradients, if they are not there, for a pass that adds to them.
  void allocate_gradients(int bucket);
  /// Records that an operator has added one microbatch's gradient to the weight.
  void written(int weight);
  /// Starts the reduction of the gradients since the last one, which adds to those of the step. A weight that no pass
  /// has written counts as zeros. Over n ranks, (n-1)/n of the gradients' bytes from each, or twice that in an
  /// all-reduce.
  void reduce(int bucket);
  /// Completes the reductions, then sums the kept gradient chunks over the copies: over r of them, 2 (r-1)/r of the
  /// bytes. Throws LogicError if a gradient was written fewer times than the step's microbatches require, or was not
  /// reduced after its last write.
  void finish();

 private:
  const GradientBucket& at(int bucket) const { return buckets_[static_cast<size_t>(bucket)]; }
  bool is_empty(int bucket) const { return at(bucket).elements.size() == 0; }
  /// The elements of the bucket whose sums the rank receives.
  Range own_chunk(int bucket) const;
  /// The rank's own chunk, in a tensor of the bucket and in a buffer of owned elements.
  at::Tensor chunk_in_bucket(const at::Tensor& all, int bucket) const;
  at::Tensor chunk_in_owned(const at::Tensor& owned, int bucket) const;
  Work start_gather(int bucket);
  /// Waits for the reduction in progress, adds its result to the owned gradients or calls on_summed, and frees the
  /// bucket's gradients.
  void complete_reduction();
  void add_to_owned(int bucket);
  void sum_over_copies();

  Comm& comm_;
  Weights& weights_;
  const std::vector<GradientBucket> buckets_;
  const std::vector<bool> in_unit_;
  const std::vector<int> uses_;
  const Reduction kind_;
  const Axes copy_axes_;
  std::vector<int64_t> owned_offsets_;  // of the own chunk among the owned elements, by bucket
  std::vector<Work> gathers_;           // by bucket
  struct Started {
    int bucket;
    Work work;
  };
  std::optional<Started> reduction_;
  std::vector<char> reduced_;           // by bucket, in this step
  std::vector<char> unreduced_;         // by weight: written since its last reduction
  std::vector<int64_t> writes_;         // by weight, in this step
  int64_t microbatches_ = 0;
};

}  // namespace orthant
