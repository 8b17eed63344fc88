// Characters whose properties depend on the version of Unicode. Hugging Face's tokenizers match expressions with those
// of Unicode 16 and normalize with those of Unicode 9, and so does Orthant. Debian 12 has PCRE2 with Unicode 14 and
// utf8proc with Unicode 15. The tables were made by comparing the libraries, character by character.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace orthant {

enum class NewerCategory : uint8_t {
  kUppercase,
  kLowercase,
  kModifierLetter,
  kOtherLetter,
  kMark,
  kDigit,
  kOtherNumber,
  kPunctuation,
  kSymbol,
};

struct NewerCharacters {
  uint32_t first, last;  // code points, both included
  NewerCategory category;
};

/// Characters that Unicode 15 and 16 added, with their general categories. Ascending; all take 3 or 4 bytes of UTF-8.
inline constexpr auto kNewerCharacters = [] {
  using enum NewerCategory;
  return std::to_array<NewerCharacters>({{0x897, 0x897, kMark},
                                         {0xcf3, 0xcf3, kMark},
                                         {0xece, 0xece, kMark},
                                         {0x1b4e, 0x1b4f, kPunctuation},
                                         {0x1b7f, 0x1b7f, kPunctuation},
                                         {0x1c89, 0x1c89, kUppercase},
                                         {0x1c8a, 0x1c8a, kLowercase},
                                         {0x2427, 0x2429, kSymbol},
                                         {0x2ffc, 0x2fff, kSymbol},
                                         {0x31e4, 0x31e5, kSymbol},
                                         {0x31ef, 0x31ef, kSymbol},
                                         {0xa7cb, 0xa7cc, kUppercase},
                                         {0xa7cd, 0xa7cd, kLowercase},
                                         {0xa7da, 0xa7da, kUppercase},
                                         {0xa7db, 0xa7db, kLowercase},
                                         {0xa7dc, 0xa7dc, kUppercase},
                                         {0x105c0, 0x105f3, kOtherLetter},
                                         {0x10d40, 0x10d49, kDigit},
                                         {0x10d4a, 0x10d4d, kOtherLetter},
                                         {0x10d4e, 0x10d4e, kModifierLetter},
                                         {0x10d4f, 0x10d4f, kOtherLetter},
                                         {0x10d50, 0x10d65, kUppercase},
                                         {0x10d69, 0x10d6d, kMark},
                                         {0x10d6e, 0x10d6e, kPunctuation},
                                         {0x10d6f, 0x10d6f, kModifierLetter},
                                         {0x10d70, 0x10d85, kLowercase},
                                         {0x10d8e, 0x10d8f, kSymbol},
                                         {0x10ec2, 0x10ec4, kOtherLetter},
                                         {0x10efc, 0x10eff, kMark},
                                         {0x1123f, 0x11240, kOtherLetter},
                                         {0x11241, 0x11241, kMark},
                                         {0x11380, 0x11389, kOtherLetter},
                                         {0x1138b, 0x1138b, kOtherLetter},
                                         {0x1138e, 0x1138e, kOtherLetter},
                                         {0x11390, 0x113b5, kOtherLetter},
                                         {0x113b7, 0x113b7, kOtherLetter},
                                         {0x113b8, 0x113c0, kMark},
                                         {0x113c2, 0x113c2, kMark},
                                         {0x113c5, 0x113c5, kMark},
                                         {0x113c7, 0x113ca, kMark},
                                         {0x113cc, 0x113d0, kMark},
                                         {0x113d1, 0x113d1, kOtherLetter},
                                         {0x113d2, 0x113d2, kMark},
                                         {0x113d3, 0x113d3, kOtherLetter},
                                         {0x113d4, 0x113d5, kPunctuation},
                                         {0x113d7, 0x113d8, kPunctuation},
                                         {0x113e1, 0x113e2, kMark},
                                         {0x116d0, 0x116e3, kDigit},
                                         {0x11b00, 0x11b09, kPunctuation},
                                         {0x11bc0, 0x11be0, kOtherLetter},
                                         {0x11be1, 0x11be1, kPunctuation},
                                         {0x11bf0, 0x11bf9, kDigit},
                                         {0x11f00, 0x11f01, kMark},
                                         {0x11f02, 0x11f02, kOtherLetter},
                                         {0x11f03, 0x11f03, kMark},
                                         {0x11f04, 0x11f10, kOtherLetter},
                                         {0x11f12, 0x11f33, kOtherLetter},
                                         {0x11f34, 0x11f3a, kMark},
                                         {0x11f3e, 0x11f42, kMark},
                                         {0x11f43, 0x11f4f, kPunctuation},
                                         {0x11f50, 0x11f59, kDigit},
                                         {0x11f5a, 0x11f5a, kMark},
                                         {0x1342f, 0x1342f, kOtherLetter},
                                         {0x13440, 0x13440, kMark},
                                         {0x13441, 0x13446, kOtherLetter},
                                         {0x13447, 0x13455, kMark},
                                         {0x13460, 0x143fa, kOtherLetter},
                                         {0x16100, 0x1611d, kOtherLetter},
                                         {0x1611e, 0x1612f, kMark},
                                         {0x16130, 0x16139, kDigit},
                                         {0x16d40, 0x16d42, kModifierLetter},
                                         {0x16d43, 0x16d6a, kOtherLetter},
                                         {0x16d6b, 0x16d6c, kModifierLetter},
                                         {0x16d6d, 0x16d6f, kPunctuation},
                                         {0x16d70, 0x16d79, kDigit},
                                         {0x18cff, 0x18cff, kOtherLetter},
                                         {0x1b132, 0x1b132, kOtherLetter},
                                         {0x1b155, 0x1b155, kOtherLetter},
                                         {0x1cc00, 0x1ccef, kSymbol},
                                         {0x1ccf0, 0x1ccf9, kDigit},
                                         {0x1cd00, 0x1ceb3, kSymbol},
                                         {0x1d2c0, 0x1d2d3, kOtherNumber},
                                         {0x1df25, 0x1df2a, kLowercase},
                                         {0x1e030, 0x1e06d, kModifierLetter},
                                         {0x1e08f, 0x1e08f, kMark},
                                         {0x1e4d0, 0x1e4ea, kOtherLetter},
                                         {0x1e4eb, 0x1e4eb, kModifierLetter},
                                         {0x1e4ec, 0x1e4ef, kMark},
                                         {0x1e4f0, 0x1e4f9, kDigit},
                                         {0x1e5d0, 0x1e5ed, kOtherLetter},
                                         {0x1e5ee, 0x1e5ef, kMark},
                                         {0x1e5f0, 0x1e5f0, kOtherLetter},
                                         {0x1e5f1, 0x1e5fa, kDigit},
                                         {0x1e5ff, 0x1e5ff, kPunctuation},
                                         {0x1f6dc, 0x1f6dc, kSymbol},
                                         {0x1f774, 0x1f776, kSymbol},
                                         {0x1f77b, 0x1f77f, kSymbol},
                                         {0x1f7d9, 0x1f7d9, kSymbol},
                                         {0x1f8b2, 0x1f8bb, kSymbol},
                                         {0x1f8c0, 0x1f8c1, kSymbol},
                                         {0x1fa75, 0x1fa77, kSymbol},
                                         {0x1fa87, 0x1fa89, kSymbol},
                                         {0x1fa8f, 0x1fa8f, kSymbol},
                                         {0x1faad, 0x1faaf, kSymbol},
                                         {0x1fabb, 0x1fabf, kSymbol},
                                         {0x1fac6, 0x1fac6, kSymbol},
                                         {0x1face, 0x1facf, kSymbol},
                                         {0x1fada, 0x1fadc, kSymbol},
                                         {0x1fadf, 0x1fadf, kSymbol},
                                         {0x1fae8, 0x1fae9, kSymbol},
                                         {0x1faf7, 0x1faf8, kSymbol},
                                         {0x1fbcb, 0x1fbef, kSymbol},
                                         {0x2b739, 0x2b739, kOtherLetter},
                                         {0x2ebf0, 0x2ee5d, kOtherLetter},
                                         {0x31350, 0x323af, kOtherLetter}});
}();

struct CodePoints {
  uint32_t first, last;  // both included
};

/// Characters that Unicode 9 neither decomposes nor reorders, while Unicode 15 does. Ascending.
inline constexpr auto kNotNormalized = std::to_array<CodePoints>(
    {{0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
     {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785},
     {0x10787, 0x107b0}, {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
     {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
     {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
     {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
     {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f},
     {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c},
     {0x1fbf0, 0x1fbf9}});

/// The range that holds the code point, or nullptr.
template <typename Ranges>
constexpr const typename Ranges::value_type* range_of(const Ranges& ranges, uint32_t code) {
  const auto found = std::ranges::lower_bound(ranges, code, {}, &Ranges::value_type::last);
  return found == ranges.end() || found->first > code ? nullptr : &*found;
}

}  // namespace orthant
