// Random numbers that are the same on every machine.
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace orthant {

/// SplitMix64, a generator of 64-bit numbers.
struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed) {}
  uint64_t next() {
    const uint64_t drawn = mix64(state);
    state += 0x9e3779b97f4a7c15ull;
    return drawn;
  }
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
};

}  // namespace orthant
