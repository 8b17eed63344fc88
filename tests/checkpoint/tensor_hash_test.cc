// The hash of a tensor: its definition, computed independently; pieces of any size; and that every byte counts.
#include "checkpoint/tensor_hash.h"

#include "base/hash.h"
#include "tests/checkpoint/fixtures.h"

namespace orthant::tensor_hash_test {
namespace {

constexpr auto kBlock = static_cast<std::size_t>(kTensorBlockBytes);

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(TensorHash, IsTheHashOfTheBlocksHashes) {
  static_assert(kTensorBlockBytes == 1'048'576, "the block's size is part of the format of checkpoints");
  const auto bytes = random_bytes(2 * kBlock + 5, 1);
  std::string hashes;
  for (const auto& [begin, size] : {std::pair{0ul, kBlock}, std::pair{kBlock, kBlock}, std::pair{2 * kBlock, 5ul}}) {
    const uint64_t block = xxh3(text_of(std::span(bytes).subspan(begin, size)));
    for (int bit = 0; bit < 64; bit += 8) hashes += static_cast<char>(block >> bit & 255);
  }
  EXPECT_EQ(tensor_xxh3(bytes), xxh3(hashes));
  EXPECT_EQ(tensor_xxh3({}), xxh3("")) << "a tensor without elements has no blocks";
}

TEST(TensorHash, DoesNotDependOnThePieces) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kBlock - 1, kBlock, kBlock + 1, 3 * kBlock}) {
    const auto bytes = random_bytes(size, size);
    const uint64_t expected = tensor_xxh3(bytes);
    for (const std::size_t piece : {std::size_t{777}, kBlock / 2 + 3, kBlock, 2 * kBlock}) {
      TensorHasher hasher;
      for (std::size_t at = 0; at < size; at += piece) {
        hasher.add(std::span(bytes).subspan(at, std::min(piece, size - at)));
        hasher.add({});
      }
      EXPECT_EQ(hasher.finish(), expected) << size << " in pieces of " << piece;
    }
  }
}

TEST(TensorHash, EveryByteCounts) {
  auto bytes = random_bytes(kBlock + 100, 3);
  const uint64_t expected = tensor_xxh3(bytes);
  for (const std::size_t at : {std::size_t{0}, kBlock - 1, kBlock, kBlock + 99}) {
    bytes[at] ^= std::byte{1};
    EXPECT_NE(tensor_xxh3(bytes), expected) << at;
    bytes[at] ^= std::byte{1};
  }
  EXPECT_EQ(tensor_xxh3(bytes), expected);
  EXPECT_NE(tensor_xxh3(std::span(bytes).first(kBlock + 99)), expected);
}

}  // namespace
}  // namespace orthant::tensor_hash_test
