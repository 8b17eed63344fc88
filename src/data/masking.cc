#include "data/masking.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/labels.h"
#include "base/philox.h"

namespace orthant {
namespace {

constexpr double k2To32 = 4294967296.0;  // number of values of a 32-bit word
constexpr uint64_t kReplacements = uint64_t{1} << 63;  // first Philox block of the words that select the replacement

// Calls `call` with each selected position, ascending. Four positions share one Philox block.
template <class Call>
void for_each_masked_position(const Masking& masking, int64_t sample, int64_t length, Call&& call) {
  std::array<uint32_t, 4> words{};
  for (int64_t position = 0; position < length; ++position) {
    const auto number = static_cast<uint64_t>(position);
    if (number % 4 == 0) words = philox_block(masking.key, static_cast<uint64_t>(sample), number / 4);
    if (words[number % 4] < masking.fraction * k2To32) call(position);
  }
}

}  // namespace

int64_t count_masked_positions(const Masking& masking, int64_t sample, int64_t length) {
  int64_t chosen = 0;
  for_each_masked_position(masking, sample, length, [&](int64_t) { ++chosen; });
  return chosen;
}

void mask_tokens(const Masking& masking, int64_t sample, std::span<int64_t> tokens, std::span<int64_t> labels) {
  ORTHANT_CHECK(tokens.size() == labels.size(), tokens.size(), labels.size());
  std::fill(labels.begin(), labels.end(), kIgnoredLabel);
  for_each_masked_position(masking, sample, static_cast<int64_t>(tokens.size()), [&](int64_t position) {
    const auto i = static_cast<size_t>(position);
    const auto words =
        philox_block(masking.key, static_cast<uint64_t>(sample), kReplacements + static_cast<uint64_t>(position));
    labels[i] = tokens[i];
    if (words[0] < 0.8 * k2To32) {
      tokens[i] = masking.mask_token;
    } else if (words[0] < 0.9 * k2To32) {
      tokens[i] = static_cast<int64_t>(words[1] * static_cast<uint64_t>(masking.mask_token) >> 32);
    }
  });
}

}  // namespace orthant
