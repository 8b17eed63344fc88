// Counts the gradient writes of a step and starts the reductions of complete buckets, from the last to the first.
#include "parallel/data/run.h"

#include "base/errors.h"

#include <ATen/ATen.h>

namespace orthant {
namespace {

at::Tensor part(const at::Tensor& flat, const Range& elements) {
  return flat.narrow(0, elements.begin, elements.size());
}

}  // namespace

GradientReducer::GradientReducer(Comm& comm, at::Tensor flat, std::vector<GradientBucket> buckets,
                                 std::vector<int> uses, Reduction reduction, Axes copy_axes)
    : comm_(comm),
      flat_(std::move(flat)),
      buckets_(std::move(buckets)),
      uses_(std::move(uses)),
      bucket_of_(uses_.size()),
      outstanding_(buckets_.size()),
      reduction_(reduction),
      copy_axes_(std::move(copy_axes)),
      work_(buckets_.size()) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const int w : buckets_[b].weights) bucket_of_[static_cast<size_t>(w)] = static_cast<int>(b);
  }
}

void GradientReducer::begin(int64_t microbatches) {
  std::fill(outstanding_.begin(), outstanding_.end(), 0);
  for (size_t w = 0; w < uses_.size(); ++w) {
    const auto bucket = static_cast<size_t>(bucket_of_[w]);
    if (buckets_[bucket].elements.size() > 0) outstanding_[bucket] += microbatches * uses_[w];
  }
  next_ = static_cast<int>(buckets_.size()) - 1;
}

void GradientReducer::written(int weight) {
  const auto bucket = static_cast<size_t>(bucket_of_[static_cast<size_t>(weight)]);
  if (buckets_[bucket].elements.size() == 0) return;  // this rank holds no part of the bucket's weights
  int64_t& left = outstanding_[bucket];
  ORTHANT_CHECK(left > 0, weight, left);
  if (--left == 0) start_ready();
}

void GradientReducer::start_ready() {
  while (next_ >= 0 && outstanding_[static_cast<size_t>(next_)] == 0) start(next_--);
}

void GradientReducer::start(int bucket) {
  const int64_t left = outstanding_[static_cast<size_t>(bucket)];
  ORTHANT_CHECK(left == 0, bucket, left);
  const GradientBucket& reduced = buckets_[static_cast<size_t>(bucket)];
  if (reduced.elements.size() == 0) return;
  const at::Tensor all = part(flat_, reduced.elements);
  Work& work = work_[static_cast<size_t>(bucket)];
  if (reduction_ == Reduction::all_reduce) {
    work = comm_.all_reduce(all, reduced.axes);
  } else {
    const Range own = reduced.chunk(comm_.position(reduced.axes));
    work = comm_.reduce_scatter(part(flat_, own), all, reduced.axes, reduced.chunk_sizes());
  }
}

void GradientReducer::finish(int bucket) {
  if (bucket < 0) {
    for (int b = static_cast<int>(buckets_.size()); b-- > 0;) finish(b);
    return;
  }
  while (next_ >= bucket) start(next_--);
  work_[static_cast<size_t>(bucket)].wait();
  const GradientBucket& reduced = buckets_[static_cast<size_t>(bucket)];
  if (copy_axes_.empty() || reduced.elements.size() == 0) return;
  comm_.all_reduce(part(flat_, reduced.chunk(comm_.position(reduced.axes))), copy_axes_).wait();
}

void gather_chunks(Comm& comm, const std::vector<GradientBucket>& buckets, const at::Tensor& flat) {
  std::vector<Work> gathers;
  for (const GradientBucket& bucket : buckets) {
    if (bucket.elements.size() == 0) continue;
    const at::Tensor own = part(flat, bucket.chunk(comm.position(bucket.axes)));
    gathers.push_back(comm.all_gather(part(flat, bucket.elements), own, bucket.axes, bucket.chunk_sizes()));
  }
  for (Work& gather : gathers) gather.wait();
}

}  // namespace orthant
