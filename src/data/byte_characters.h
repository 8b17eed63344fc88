// The characters that stand for bytes in byte-level vocabularies, such as GPT-2's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/utf8.h"

namespace orthant {

/// The code point of the character that stands for a byte: the byte itself if it is printable Latin-1, else the next
/// unused one from U+0100 on.
inline constexpr std::array<uint16_t, 256> kCodePointOfByte = [] {
  std::array<uint16_t, 256> codes{};
  uint16_t next = 256;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    codes[byte] = printable ? byte : next++;
  }
  return codes;
}();

inline std::string character_of_byte(uint8_t byte) {
  const uint16_t code = kCodePointOfByte[byte];
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

/// The bytes for which the characters of a text stand; empty if one of them stands for no byte.
inline std::optional<std::string> bytes_of_characters(std::string_view text) {
  static constexpr auto kByteOfCodePoint = [] {
    std::array<int16_t, 324> bytes{};
    bytes.fill(-1);
    for (int16_t byte = 0; byte < 256; ++byte) bytes[kCodePointOfByte[static_cast<size_t>(byte)]] = byte;
    return bytes;
  }();
  std::string bytes;
  for (size_t at = 0, length = 0; at < text.size(); at += length) {
    length = utf8_length(text.substr(at));
    const uint32_t code = length == 0 ? kByteOfCodePoint.size() : code_point(text.substr(at, length));
    if (code >= kByteOfCodePoint.size() || kByteOfCodePoint[code] < 0) return {};
    bytes += static_cast<char>(kByteOfCodePoint[code]);
  }
  return bytes;
}

}  // namespace orthant
