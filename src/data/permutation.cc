#include "data/permutation.h"

#include "base/errors.h"
#include "base/hash.h"

namespace orthant {

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t epoch) : size_(size), half_bits_(0) {
  ORTHANT_CHECK(size >= 1, size);
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  ORTHANT_CHECK((int64_t{1} << (2 * half_bits_)) >= size, size);
  for (uint64_t round = 0; round < kRounds; ++round) keys_[round] = mix64(mix64(mix64(seed) ^ epoch) + round);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t key : keys_) {
    const uint64_t next = left ^ (mix64(right ^ key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t position) const {
  ORTHANT_CHECK(position >= 0 && position < size_, position, size_);
  uint64_t value = static_cast<uint64_t>(position);
  do value = encrypt(value);
  while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace orthant
