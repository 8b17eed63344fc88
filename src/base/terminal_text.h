// Text that another process or a file supplies, made safe for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orthant {

/// Number of bytes of the UTF-8 character that begins at `at`; 0 where the bytes are not valid UTF-8.
size_t utf8_length(std::string_view text, size_t at);

/// The text with every character that a terminal could obey written as an escape: control characters as \x1b, the
/// controls of Unicode (U+0080 to U+009F, and those of line ends and of the direction of writing) as \u{202e}, bytes
/// that are not valid UTF-8 as \xff. Line ends and tabs stay. Text beyond max_bytes is cut, and the cut is stated.
std::string escape_for_terminal(std::string_view text, size_t max_bytes = 4096);

}  // namespace orthant
