// The order of samples as a function: a permutation of [0, n) keyed by (seed, epoch) that needs no array, so that any
// rank finds the k-th sample of any epoch at once and a resumed run continues the same order at any number of ranks.
#pragma once

#include <array>
#include <cstdint>

namespace orthant {

/// A bijection of [0, size): a balanced Feistel network over the smallest power of four >= size, walked along its cycle
/// until the value falls inside the range (fewer than four rounds of it on average). Values are the same everywhere and
/// for ever: checkpoints rely on them.
class Permutation {
 public:
  /// size >= 1; otherwise LogicError.
  Permutation(int64_t size, uint64_t seed, uint64_t epoch);
  /// Where position stands in the shuffled order. 0 <= position < size, otherwise LogicError.
  int64_t operator()(int64_t position) const;
  int64_t size() const { return size_; }

 private:
  static constexpr int kRounds = 6;
  uint64_t encrypt(uint64_t value) const;

  int64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace orthant
