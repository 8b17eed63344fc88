// Text for readers: numbers with units, suggestions for misspelled words, splitting and joining.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// Bytes with a binary unit: "1.5 GiB", "12.0 KiB", "17 B".
std::string format_bytes(double bytes);
/// A count with a decimal unit, in powers of 1000: "1.23M", "45.6k", "789".
std::string format_count(double count);
/// A duration given in seconds: "1h 02m", "3m 05s", "12.3 s", "45 ms".
std::string format_seconds(double seconds);
/// A duration given in seconds, with four digits: "18.60 s", "374.5 ms", "12.05 us".
std::string precise_seconds(double seconds);
/// Joins words to a line that a POSIX shell splits into the same words.
std::string shell_quoted(const std::vector<std::string>& words);
/// Decimal digits in groups of three: "1,234,567".
std::string grouped(int64_t number);
/// A count with its noun in singular or plural: "1 document", "1,234 documents".
std::string counted(int64_t count, std::string_view noun);

/// Smallest number of single-character edits (insert, delete, replace, swap of neighbors) that turn a into b.
int edit_distance(std::string_view a, std::string_view b);
/// The candidate with the smallest edit distance from word. The distance must be at most a third of the word's length,
/// or at most 2 for words shorter than 6 bytes; otherwise the result is empty.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

/// The text with its ASCII letters in lower case.
std::string to_lower(std::string text);

/// Joins words as in "a, b or c".
std::string join_or(std::span<const std::string> words);
/// Joins words with a separator between them.
std::string join(std::span<const std::string> words, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

}  // namespace orthant
