// Binds the XXH3 reference implementation, which is compiled into this file only.
#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <new>

namespace orthant {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are hashed as they lie in memory");

XXH3_state_t* state_of(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

uint64_t xxh3(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Hasher::Hasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  reset();
}

Hasher::~Hasher() { XXH3_freeState(state_of(state_)); }

void Hasher::reset() { XXH3_64bits_reset(state_of(state_)); }

void Hasher::add(std::string_view bytes) { XXH3_64bits_update(state_of(state_), bytes.data(), bytes.size()); }

void Hasher::add_field(uint64_t number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  add({bytes, sizeof number});
}

void Hasher::add_field(std::string_view text) {
  add_field(text.size());
  add(text);
}

uint64_t Hasher::digest() const { return XXH3_64bits_digest(state_of(state_)); }

}  // namespace orthant
