// The order of samples as a function: a permutation of [0, n), keyed by (seed, epoch), that needs no array. Any rank
// finds the k-th sample of any epoch at once, and a resumed run continues the same order on any number of ranks.
#pragma once

#include <array>
#include <cstdint>

namespace orthant {

/// A bijection of [0, size). A balanced Feistel network permutes the smallest power of four >= size. It is applied
/// again until the value is below size, fewer than four times on average. The values must never change on any platform,
/// because checkpoints rely on them.
class Permutation {
 public:
  /// LogicError unless size >= 1.
  Permutation(int64_t size, uint64_t seed, uint64_t epoch);
  /// The shuffled index at this position. LogicError unless 0 <= position < size.
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
