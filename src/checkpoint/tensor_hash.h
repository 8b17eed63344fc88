// A hash of a tensor that depends on its elements alone: not on the file, the shard or the rank that stores it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/files.h"

namespace orthant {

/// A tensor's bytes are hashed per block, so that a rank can hash the blocks that it holds.
inline constexpr int64_t kTensorBlockBytes = int64_t{1} << 20;

/// Computes the hash of a tensor from the bytes of the unsharded tensor, in row-major order and in pieces of any size.
/// The hash is the 64-bit XXH3 of the blocks' hashes, as little-endian 64-bit numbers. The hash of a block is the XXH3
/// of kTensorBlockBytes bytes; the last block may be shorter. Dtype and shape are not part of the hash.
class TensorHasher {
 public:
  void add(std::span<const std::byte> bytes) { blocks_.add(bytes); }
  /// Returns the hash of all bytes added. Call it once, at the end.
  uint64_t finish();

 private:
  Digester blocks_{kTensorBlockBytes};
};

/// The hash of a tensor in memory.
uint64_t tensor_xxh3(std::span<const std::byte> bytes);

}  // namespace orthant
