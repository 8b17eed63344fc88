// Regular expressions of tokenizers, by PCRE2 with its just-in-time compiler.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct TextRange {
  size_t begin = 0, end = 0;  // bytes; `end` is excluded
};

/// An expression in the syntax that Hugging Face's tokenizers use (Oniguruma), as far as PCRE2 has it too. Categories
/// are those of Unicode 16, also if PCRE2 has Unicode 14 or 15. Bytes that are not valid UTF-8 match nothing.
class Pattern {
 public:
  /// Throws DataError, with `source`, for an expression that PCRE2 refuses, whose meaning differs in PCRE2, or that
  /// matches the empty text.
  Pattern(const std::string& expression, const std::string& source);
  /// The pattern of exactly this text.
  static Pattern of_text(std::string_view text);

  /// The matches in the text, from left to right and without overlap. Threads may share a
  /// Pattern. Throws DataError if PCRE2 gives up, for instance because an expression backtracks too often.
  std::vector<TextRange> find_all(std::string_view text) const;

 private:
  struct Compiled;
  std::string text_;  // of of_text()
  std::string expression_, source_;
  std::shared_ptr<const Compiled> compiled_;
  Pattern() = default;
};

}  // namespace orthant
