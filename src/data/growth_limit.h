// Limits the text that the steps of a tokenizer.json make of another text. Steps may lengthen it, and a chain of them
// could do so exponentially.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {

/// The most steps that a normalizer, a pre-tokenizer or a decoder may have.
inline constexpr size_t kMostTokenizerSteps = 64;

/// Throws DataError if `steps` is more than kMostTokenizerSteps. `part` names the part of the tokenizer.json.
inline void require_few_steps(size_t steps, std::string_view part, const std::string& source) {
  if (steps <= kMostTokenizerSteps) return;
  throw DataError(
      fmt::format("{}: the {} must have at most {} steps; join or remove steps", source, part, kMostTokenizerSteps));
}

/// The law that steps may make at most 256 + 64 x N bytes of a text of N bytes. The longest text that a real normalizer
/// makes is that of NFKD, 11 bytes of one.
class GrowthLimit {
 public:
  GrowthLimit(size_t text_bytes, std::string_view part, const std::string& source)
      : text_bytes_(text_bytes), part_(part), source_(source) {}

  /// Throws DataError if `bytes` is more than the law allows.
  void require(size_t bytes) const {
    if (bytes <= most_bytes()) [[likely]]
      return;
    throw DataError(
        fmt::format("{}: the {} must make at most 256 + 64 x {} = {} bytes of a text of {}, and makes more; "
                    "remove steps that "
                    "lengthen text, or use another tokenizer",
                    source_, part_, text_bytes_, most_bytes(), counted(static_cast<int64_t>(text_bytes_), "byte")));
  }

 private:
  size_t most_bytes() const { return 256 + 64 * text_bytes_; }

  size_t text_bytes_;
  std::string_view part_;
  const std::string& source_;
};

}  // namespace orthant
