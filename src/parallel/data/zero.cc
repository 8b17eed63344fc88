#include "parallel/data/zero.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"

namespace orthant {

ShardedStates::ShardedStates(Comm& comm, Weights& weights, std::vector<GradientBucket> buckets,
                             std::vector<bool> in_unit, std::vector<int> uses, Reduction reduction, Axes copy_axes)
    : comm_(comm),
      weights_(weights),
      buckets_(std::move(buckets)),
      in_unit_(std::move(in_unit)),
      uses_(std::move(uses)),
      kind_(reduction),
      copy_axes_(std::move(copy_axes)),
      owned_offsets_(buckets_.size()),
      gathers_(buckets_.size()),
      reduced_(buckets_.size()),
      unreduced_(uses_.size()),
      writes_(uses_.size()) {
  const bool shards_values = weights_.owned_values().defined();
  for (int bucket = 0; bucket < std::ssize(buckets_); ++bucket) {
    const auto b = static_cast<size_t>(bucket);
    for (const auto& [begin, end] : weights_.owned().chunks()) {
      if (begin >= own_chunk(bucket).begin) break;
      owned_offsets_[b] += end - begin;
    }
    if (in_unit_[b]) continue;
    weights_.segmented_gradients().allocate(b);
    if (shards_values) weights_.segmented_values().allocate(b);
  }
}

Range ShardedStates::own_chunk(int bucket) const {
  const GradientBucket& own = at(bucket);
  return kind_ == Reduction::all_reduce ? own.elements : own.chunk(comm_.position(own.axes));
}

at::Tensor ShardedStates::chunk_in_bucket(const at::Tensor& all, int bucket) const {
  return all.narrow(0, own_chunk(bucket).begin - at(bucket).elements.begin, own_chunk(bucket).size());
}

at::Tensor ShardedStates::chunk_in_owned(const at::Tensor& owned, int bucket) const {
  return owned.narrow(0, owned_offsets_[static_cast<size_t>(bucket)], own_chunk(bucket).size());
}

Work ShardedStates::start_gather(int bucket) {
  const at::Tensor all = weights_.segmented_values().segment(static_cast<size_t>(bucket));
  const at::Tensor own = chunk_in_bucket(all, bucket);
  own.copy_(chunk_in_owned(weights_.owned_values(), bucket));
  return comm_.all_gather(all, own, at(bucket).axes, at(bucket).chunk_sizes());
}

void ShardedStates::unshard(int bucket) {
  if (is_empty(bucket)) return;
  const at::NoGradGuard no_grad;
  weights_.segmented_values().allocate(static_cast<size_t>(bucket));
  gathers_[static_cast<size_t>(bucket)] = start_gather(bucket);
}

void ShardedStates::wait_for(int bucket) { gathers_[static_cast<size_t>(bucket)].wait(); }

void ShardedStates::reshard(int bucket) {
  wait_for(bucket);
  weights_.segmented_values().free(static_cast<size_t>(bucket));
}

void ShardedStates::reshard_all() {
  if (!weights_.owned_values().defined()) return;
  for (int bucket = 0; bucket < std::ssize(buckets_); ++bucket) {
    if (in_unit_[static_cast<size_t>(bucket)]) reshard(bucket);
  }
}

void ShardedStates::gather_resident_weights() {
  const at::NoGradGuard no_grad;
  for (int bucket = 0; bucket < std::ssize(buckets_); ++bucket) {
    if (!in_unit_[static_cast<size_t>(bucket)] && !is_empty(bucket)) start_gather(bucket).wait();
  }
}

void ShardedStates::begin(int64_t microbatches) {
  microbatches_ = microbatches;
  std::ranges::fill(reduced_, 0);
  std::ranges::fill(writes_, 0);
  std::ranges::fill(unreduced_, 0);
}

void ShardedStates::written(int weight) {
  ++writes_[static_cast<size_t>(weight)];
  unreduced_[static_cast<size_t>(weight)] = 1;
}

void ShardedStates::allocate_gradients(int bucket) {
  if (reduction_ && reduction_->bucket == bucket) complete_reduction();
  weights_.segmented_gradients().allocate(static_cast<size_t>(bucket));
}

void ShardedStates::reduce(int bucket) {
  if (is_empty(bucket)) return;
  const at::NoGradGuard no_grad;
  complete_reduction();
  allocate_gradients(bucket);
  for (const int w : at(bucket).weights) {
    const Weight& weight = weights_.all()[static_cast<size_t>(w)];
    if (weight.take_overwrite_flag()) weight.gradient.zero_();
    weight.fresh = true;
    unreduced_[static_cast<size_t>(w)] = 0;
  }
  const at::Tensor all = weights_.segmented_gradients().segment(static_cast<size_t>(bucket));
  Work work = kind_ == Reduction::all_reduce
                  ? comm_.all_reduce(all, at(bucket).axes)
                  : comm_.reduce_scatter(chunk_in_bucket(all, bucket), all, at(bucket).axes, at(bucket).chunk_sizes());
  reduction_ = {bucket, std::move(work)};
  if (comm_.group_size(at(bucket).axes) == 1) complete_reduction();
}

void ShardedStates::complete_reduction() {
  if (!reduction_) return;
  const at::NoGradGuard no_grad;
  const int bucket = reduction_->bucket;
  reduction_->work.wait();
  reduction_.reset();
  if (weights_.owned_gradients().defined()) {
    add_to_owned(bucket);
  } else {
    const at::Tensor sum = chunk_in_bucket(weights_.segmented_gradients().segment(static_cast<size_t>(bucket)), bucket);
    if (!copy_axes_.empty()) comm_.all_reduce(sum, copy_axes_).wait();
    on_summed(bucket);
  }
  const auto b = static_cast<size_t>(bucket);
  reduced_[b] = 1;
  if (in_unit_[b]) weights_.segmented_gradients().free(b);
}

void ShardedStates::add_to_owned(int bucket) {
  const auto b = static_cast<size_t>(bucket);
  const at::Tensor sum = chunk_in_bucket(weights_.segmented_gradients().segment(b), bucket);
  const at::Tensor own = chunk_in_owned(weights_.owned_gradients(), bucket);
  if (reduced_[b]) {
    own.add_(sum);
  } else {
    own.copy_(sum);
  }
}

void ShardedStates::sum_over_copies() {
  if (copy_axes_.empty() || !weights_.owned_gradients().defined()) return;
  std::vector<Work> sums;
  for (int bucket = 0; bucket < std::ssize(buckets_); ++bucket) {
    if (is_empty(bucket)) continue;
    sums.push_back(comm_.all_reduce(chunk_in_owned(weights_.owned_gradients(), bucket), copy_axes_));
  }
  for (Work& sum : sums) sum.wait();
}

void ShardedStates::finish() {
  complete_reduction();
  sum_over_copies();
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (is_empty(static_cast<int>(b))) continue;
    ORTHANT_CHECK(reduced_[b] && !(in_unit_[b] && weights_.segmented_gradients().is_allocated(b)), b);
    for (const int w : buckets_[b].weights) {
      const auto weight = static_cast<size_t>(w);
      ORTHANT_CHECK(writes_[weight] == microbatches_ * uses_[weight], w, writes_[weight], microbatches_);
      ORTHANT_CHECK(!unreduced_[weight], w, "has a gradient that was written after its last reduction");
    }
  }
}

}  // namespace orthant
