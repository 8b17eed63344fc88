// Makes text from another process or a file safe to print on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orthant {

/// Number of bytes of the UTF-8 character that begins at byte `at`; 0 if the bytes there are not valid UTF-8.
size_t utf8_length(std::string_view text, size_t at);

/// Returns the text with every control character replaced by an escape, so that a terminal prints it and does not obey
/// it. ASCII controls become \x1b. Unicode controls (U+0080 to U+009F, line and paragraph separators, and marks of
/// writing direction) become \u{202e}. Bytes that are not valid UTF-8 become \xff. Newlines and tabs stay. The result
/// is cut at max_bytes, and then ends with the number of bytes of `text` that it lacks.
std::string escape_for_terminal(std::string_view text, size_t max_bytes = 4096);
/// The same, with newlines as \n, for a text that must not begin a line of its own.
std::string escape_line(std::string_view text);

}  // namespace orthant
