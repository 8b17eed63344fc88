// Size of the receive buffers of reductions. The comm library allocates them, and a plan counts them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace orthant {

/// Maximum bytes in flight of one other rank's partial sum. Larger partial sums arrive as successive segments.
inline constexpr int64_t kMaxPartialSumBytes = 1 << 20;

/// Bytes of buffers for partial sums, while a rank forms the sum of a chunk that it owns. Over NCCL they hold the whole
/// chunk of every rank.
constexpr int64_t reduction_buffer_bytes(int64_t chunk_bytes, int ranks, bool over_nccl) {
  return over_nccl ? ranks * chunk_bytes : (ranks - 1) * std::min(chunk_bytes, kMaxPartialSumBytes);
}

}  // namespace orthant
