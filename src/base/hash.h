// XXH3 for checksums, fingerprints and names of cached files, and a mixer of numbers; neither is for secrets. Values
// are the same on every machine.
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

/// XXH3 (64 bits) of bytes in memory.
uint64_t xxh3(std::string_view bytes);

/// XXH3 (64 bits) of a stream of bytes; how the stream is cut into calls of add() does not matter.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::string_view bytes);
  /// A number or a text with its own boundary: ("ab", "c") differs from ("a", "bc").
  void add_field(uint64_t number);
  void add_field(std::string_view text);
  /// Of all that was added so far.
  uint64_t digest() const;
  /// Begins anew.
  void reset();

 private:
  void* state_;  // XXH3_state_t
};

}  // namespace orthant
