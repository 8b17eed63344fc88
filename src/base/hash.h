// XXH3 for checksums, fingerprints and names of cached files, and a mixing function for 64-bit numbers. Neither is
// cryptographic. The values are the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace orthant {

/// Maps 64-bit numbers to 64-bit numbers, one to one. Every input bit changes about half of the output bits. This is
/// the finalizer of splitmix64.
inline uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// 64-bit XXH3 of bytes in memory.
uint64_t xxh3(std::string_view bytes);

/// 64-bit XXH3 of a stream of bytes. The result does not depend on how the stream is split into calls of add().
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::string_view bytes);
  /// Adds a number, or a text after its length, so that ("ab", "c") and ("a", "bc") give different hashes.
  void add_field(uint64_t number);
  void add_field(std::string_view text);
  /// Hash of all bytes added since construction or the last reset().
  uint64_t digest() const;
  /// Forgets all bytes added so far.
  void reset();

 private:
  void* state_;  // XXH3_state_t
};

}  // namespace orthant
