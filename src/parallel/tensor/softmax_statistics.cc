#include "parallel/tensor/softmax_statistics.h"

#include <ATen/ATen.h>

namespace orthant {

at::Tensor rescaling(const at::Tensor& from, const at::Tensor& to, Exponential exponential) {
  return exponential(from - to).masked_fill_(from.eq(-INFINITY), 0.0);
}

at::Tensor merge_statistics(const at::Tensor& statistics, Exponential exponential) {
  const at::Tensor all = statistics.to(at::kDouble), joined = at::zeros_like(all[0]);
  joined[0].copy_(all.select(1, 0).amax(0));
  for (int64_t shard = 0; shard < all.size(0); ++shard) {
    const at::Tensor own = all[shard];
    joined[1].add_(own[1] * rescaling(own[0], joined[0], exponential));
    joined.narrow(0, 2, own.size(0) - 2).add_(own.narrow(0, 2, own.size(0) - 2));
  }
  return joined;
}

}  // namespace orthant
