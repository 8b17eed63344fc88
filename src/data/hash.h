// A 64-bit hash for names of cached files and for choosing documents; not for secrets. Equal on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace orthant {

/// A bijection of 64-bit numbers in which every input bit changes about half of the output bits (splitmix64's
/// finalizer).
inline uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// Hash of a stream of bytes; how the stream is cut into calls of add() does not matter.
class Hasher {
 public:
  void add(std::string_view bytes);
  /// A number or a text with its own boundary: ("ab", "c") differs from ("a", "bc").
  void add_field(uint64_t number);
  void add_field(std::string_view text);
  uint64_t digest() const;

 private:
  void word(uint64_t value);
  uint64_t state_ = 0x6f727468616e7400, pending_ = 0, bytes_ = 0;
};

}  // namespace orthant
