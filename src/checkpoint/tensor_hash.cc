// Hashes a tensor by the hashes of its blocks.
#include "checkpoint/tensor_hash.h"

#include <bit>
#include <string_view>

#include "base/hash.h"

namespace orthant {

static_assert(std::endian::native == std::endian::little, "the blocks' hashes are hashed as they lie in memory");

uint64_t TensorHasher::finish() {
  const std::vector<uint64_t> blocks = blocks_.finish().block_xxh3;
  return xxh3({reinterpret_cast<const char*>(blocks.data()), blocks.size() * sizeof(uint64_t)});
}

uint64_t tensor_xxh3(std::span<const std::byte> bytes) {
  TensorHasher hasher;
  hasher.add(bytes);
  return hasher.finish();
}

}  // namespace orthant
