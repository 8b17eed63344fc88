#include "base/terminal_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace orthant {
namespace {

unsigned byte_at(std::string_view text, size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
}

// The code point of a valid character of `length` bytes.
unsigned code_point(std::string_view text, size_t at, size_t length) {
  if (length == 1) return byte_at(text, at);
  unsigned code = byte_at(text, at) & (0xffu >> (length + 1));
  for (size_t k = 1; k < length; ++k) code = code << 6 | (byte_at(text, at + k) & 0x3f);
  return code;
}

bool is_unicode_control(unsigned code) {
  return (code >= 0x80 && code < 0xa0) || code == 0x61c || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

size_t utf8_length(std::string_view text, size_t at) {
  const unsigned lead = byte_at(text, at), second = byte_at(text, at + 1);
  if (at >= text.size()) return 0;
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  for (size_t k = 1; k < length; ++k) {
    if ((byte_at(text, at + k) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and values above U+10FFFF are not valid.
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second >= 0xa0)) return 0;
  if ((lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second >= 0x90)) return 0;
  return length;
}

std::string escape_for_terminal(std::string_view text, size_t max_bytes) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    std::string piece(text.substr(at, std::max<size_t>(1, length)));
    if (length <= 1) {
      const unsigned byte = byte_at(text, at);
      const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
      if (length == 0 || control) piece = fmt::format("\\x{:02x}", byte);
    } else if (const unsigned code = code_point(text, at, length); is_unicode_control(code)) {
      piece = fmt::format("\\u{{{:04x}}}", code);
    }
    if (out.size() + piece.size() > max_bytes) {
      return out + fmt::format("... ({} omitted)", counted(static_cast<int64_t>(text.size() - at), "byte"));
    }
    out += piece;
    at += std::max<size_t>(1, length);
  }
  return out;
}

std::string escape_line(std::string_view text) {
  std::string line;
  for (const char c : escape_for_terminal(text)) line += c == '\n' ? "\\n" : std::string(1, c);
  return line;
}

}  // namespace orthant
