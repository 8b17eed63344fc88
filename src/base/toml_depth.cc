#include "base/toml_depth.h"

#include <algorithm>

namespace orthant {
namespace {

// Returns the offset after the string that begins at `at` with a quote. Without its end: the end of the line, or of the
// text if three quotes begin the string.
size_t skip_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string_view three = text.substr(at, 3);
  const bool has_lines = three.size() == 3 && three[1] == quote && three[2] == quote;
  at += has_lines ? 3 : 1;
  while (at < text.size()) {
    if (quote == '"' && text[at] == '\\') {
      at += 2;
    } else if (text[at] != quote) {
      if (text[at] == '\n' && !has_lines) return at;
      ++at;
    } else if (!has_lines) {
      return at + 1;
    } else if (text.substr(at, 3) == three) {
      return at + 3;
    } else {
      ++at;
    }
  }
  return text.size();
}

}  // namespace

std::optional<size_t> line_of_deep_key(std::string_view toml) {
  constexpr std::string_view kEndsOfKeys = "\n=,[{";
  int parts = 1;
  size_t line = 1;
  for (size_t at = 0; at < toml.size();) {
    const char letter = toml[at];
    if (letter == '"' || letter == '\'') {
      const size_t end = skip_string(toml, at);
      line += static_cast<size_t>(std::count(toml.begin() + static_cast<std::ptrdiff_t>(at),
                                             toml.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      at = end;
      continue;
    }
    if (letter == '#') {
      at = std::min(toml.find('\n', at), toml.size());
      continue;
    }
    if (letter == '.' && ++parts > kMostKeyParts) return line;
    if (kEndsOfKeys.find(letter) != std::string_view::npos) parts = 1;
    if (letter == '\n') ++line;
    ++at;
  }
  return {};
}

}  // namespace orthant
