// What a rank holds beside its tensors while sums are formed: comm takes it, and a plan counts it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace orthant {

/// Of each other rank's summand that is on its way, in segments one after the other, at most.
inline constexpr int64_t kSummandBytes = 1 << 20;

/// Summands of all other ranks, while a rank forms the sum of a chunk that it owns.
constexpr int64_t staging_bytes(int64_t chunk_bytes, int ranks) {
  return (ranks - 1) * std::min(chunk_bytes, kSummandBytes);
}

}  // namespace orthant
