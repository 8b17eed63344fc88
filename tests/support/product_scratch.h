// What libtorch's products in bfloat16 hold beside their operands, on this machine. With AMX that is a copy of one
// operand, in blocks, which plans count where it decides: of the vocabulary's table. Other CPUs have other kernels:
// AVX-512 with bfloat16 has buffers of a few blocks, AVX-512 without it a float32 copy of the result, and what has
// neither has nothing.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "tests/support/thread_memory.h"

namespace orthant {

inline bool has_amx() { return __builtin_cpu_supports("amx-bf16"); }

/// Bytes beside [M, K] [K, N] -> [M, N], on one thread. Counts all tensors of the process from now on.
inline int64_t product_scratch(int64_t M, int64_t N, int64_t K) {
  ThreadMemory::install();
  at::set_num_threads(1);
  int64_t most = 0;
  for (const bool turned : {false, true}) {
    const at::Tensor a = at::zeros({M, K}, at::kBFloat16);
    const at::Tensor b = turned ? at::zeros({N, K}, at::kBFloat16).t() : at::zeros({K, N}, at::kBFloat16);
    ThreadMemory::reset();
    const int64_t before = ThreadMemory::now();
    const at::Tensor product = a.mm(b);
    most = std::max(most, ThreadMemory::peak() - before - static_cast<int64_t>(product.nbytes()));
  }
  return most;
}

}  // namespace orthant
