// Flat memory: how all transports see tensors, so that they move the same bytes and sum in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace orthant {

/// The elements in one dim, without autograd.
at::Tensor flat(const at::Tensor& tensor);
/// The memory as bytes: for what only moves.
at::Tensor flat_bytes(const at::Tensor& tensor);
std::vector<int64_t> counts_in_bytes(std::span<const int64_t> counts, const at::Tensor& tensor);
bool all_equal(std::span<const int64_t> counts);

/// output = the sum of the rows of `chunks`, in order; bf16 and fp16 are summed in float32 and rounded once. May write
/// into `chunks`.
void sum_in_order(const at::Tensor& chunks, const at::Tensor& output);

}  // namespace orthant
