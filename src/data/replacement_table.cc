#include "data/replacement_table.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "data/newer_characters.h"
#include "data/utf8.h"

namespace orthant {

std::optional<std::string> decode_base64(std::string_view text) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0, count = 0;
  for (const char letter : text) {
    const size_t digit = kDigits.find(letter);
    if (digit == std::string_view::npos) return {};
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}

ReplacementTable::ReplacementTable(std::string_view bytes, const std::string& source) {
  uint32_t trie_bytes = 0;
  if (bytes.size() >= sizeof trie_bytes) std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  if (bytes.size() < sizeof trie_bytes || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - sizeof trie_bytes) {
    throw DataError(fmt::format("{}: precompiled_charsmap of {} bytes is damaged: its trie takes {} bytes", source,
                                bytes.size(), trie_bytes));
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
  texts_ = bytes.substr(sizeof trie_bytes + trie_bytes);
}

// The replacement of the shortest text in the table with which `text` begins.
std::optional<std::string_view> ReplacementTable::replacement(std::string_view text) const {
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  if (units_.empty()) return {};
  size_t node = offset(units_[0]);
  for (const char letter : text) {
    const auto byte = static_cast<uint8_t>(letter);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || (units_[node] & (1u << 31 | 0xff)) != byte) return {};
    const uint32_t unit = units_[node];
    node ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    const uint32_t begin = node < units_.size() ? units_[node] & ~(1u << 31) : ~0u;
    if (begin > texts_.size()) return {};
    return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
  }
  return {};
}

std::string ReplacementTable::replace(std::string_view text, const GrowthLimit& limit) const {
  std::string replaced;
  const auto append = [&](std::string_view part) {
    const auto found = replacement(part);
    replaced += found ? *found : part;
    limit.require(replaced.size());
  };
  const auto length_at = [&](size_t at) { return std::max<size_t>(utf8_length(text.substr(at)), 1); };
  for (size_t begin = 0; begin < text.size();) {
    // The grapheme cluster from `begin` on.
    size_t end = begin + length_at(begin);
    utf8proc_int32_t state = 0;
    const auto code_at = [&](size_t at) {
      const size_t length = utf8_length(text.substr(at));
      const uint32_t code = length == 0 ? 0xfffd : code_point(text.substr(at, length));
      constexpr uint32_t kKnownMark = 0x1ab0;
      const NewerCharacters* newer = range_of(kNewerCharacters, code);
      const bool is_mark = newer != nullptr && newer->category == NewerCategory::kMark;
      return static_cast<utf8proc_int32_t>(is_mark ? kKnownMark : code);
    };
    for (size_t last = begin; end < text.size(); last = std::exchange(end, end + length_at(end))) {
      if (utf8proc_grapheme_break_stateful(code_at(last), code_at(end), &state)) break;
    }
    constexpr size_t kMostBytesAtOnce = 5;
    if (end - begin <= kMostBytesAtOnce && replacement(text.substr(begin, end - begin))) {
      append(text.substr(begin, end - begin));
    } else {
      for (size_t at = begin; at < end; at += length_at(at)) append(text.substr(at, length_at(at)));
    }
    begin = end;
  }
  return replaced;
}

}  // namespace orthant
