#include "data/hash.h"

#include <bit>
#include <cstring>

namespace orthant {

static_assert(std::endian::native == std::endian::little, "the file formats of this room are little-endian");

void Hasher::word(uint64_t value) {
  state_ = std::rotl((state_ ^ value) * 0x9fb21c651e98df25, 29) + 0x2545f4914f6cdd1d;
}

void Hasher::add(std::string_view bytes) {
  size_t done = 0;
  for (; done < bytes.size() && bytes_ % 8 != 0; ++done) {
    pending_ |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[done])) << (8 * (bytes_ % 8));
    if (++bytes_ % 8 == 0) {
      word(pending_);
      pending_ = 0;
    }
  }
  for (; bytes.size() - done >= 8; done += 8, bytes_ += 8) {
    uint64_t value;
    std::memcpy(&value, bytes.data() + done, 8);
    word(value);
  }
  for (; done < bytes.size(); ++done, ++bytes_)
    pending_ |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[done])) << (8 * (bytes_ % 8));
}

void Hasher::add_field(uint64_t number) {
  char bytes[8];
  std::memcpy(bytes, &number, 8);
  add({bytes, 8});
}

void Hasher::add_field(std::string_view text) {
  add_field(text.size());
  add(text);
}

uint64_t Hasher::digest() const { return mix64(mix64(state_ ^ pending_) ^ bytes_); }

}  // namespace orthant
