// A guard for TOML texts of unknown origin. The TOML library makes one table for each part of a dotted key and destroys
// tables recursively, so that a key of many parts would overflow the stack. It limits the nesting of values by itself.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace orthant {

/// The largest number of parts of a key that readers of TOML files accept.
inline constexpr int kMostKeyParts = 32;

/// Returns the line, from 1, of the first key or header of more than kMostKeyParts parts. Dots in strings and comments
/// separate no parts. Takes time linear in the text, which need not be valid TOML.
std::optional<size_t> line_of_deep_key(std::string_view toml);

}  // namespace orthant
