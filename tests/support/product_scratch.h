// Memory that libtorch's bfloat16 products take in addition to operands and result on this machine. With AMX it is a
// blocked copy of one operand. Plans count that copy where it matters: for the embedding table. With AVX-512 and
// bfloat16 instructions it is a few blocks of buffers; with AVX-512 alone, a float32 copy of the result. Other CPUs
// take none.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "tests/support/thread_memory.h"

namespace orthant {

inline bool has_amx() { return __builtin_cpu_supports("amx-bf16"); }

/// Returns the largest scratch, in bytes, of [M, K] [K, N] -> [M, N] on one thread, for both layouts of the second
/// operand. From this call on, ThreadMemory counts all CPU tensors of the process.
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
