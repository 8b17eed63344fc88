// Softmax over a sharded vocabulary: the statistics of each shard, under its own maximum, become those of the whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/exp.h>

namespace orthant {

/// A function that returns exp(x) of each element.
using Exponential = at::Tensor (*)(const at::Tensor& x);

/// exp(from - to), the factor that turns exponentials under the maximum `from` into those under `to`; 0 if from is
/// -infinity, as for a shard without logits.
at::Tensor rescaling(const at::Tensor& from, const at::Tensor& to, Exponential exponential = at::exp);

/// Joins the statistics [shards,S,N] of N tokens in the order of shards: [S,N] in float64. Their rows are maximum, sum
/// of exponentials, and S - 2 plain sums.
at::Tensor merge_statistics(const at::Tensor& statistics, Exponential exponential = at::exp);

}  // namespace orthant
