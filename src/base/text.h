// Text for people: numbers with units, nearest words, joining.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// "1.5 GiB", "12.0 KiB", "17 B".
std::string human_bytes(double bytes);
/// "1.23M", "45.6k", "789": a count of things, in powers of 1000.
std::string human_count(double count);
/// "1h 02m", "3m 05s", "12.3 s", "45 ms".
std::string human_seconds(double seconds);
/// Decimal digits grouped in threes: 1,234,567.
std::string grouped(int64_t number);
/// "1 document", "1,234 documents".
std::string counted(int64_t count, std::string_view noun);

/// Number of single-character edits (insert, delete, replace, swap of neighbours) that turn a into b.
int edit_distance(std::string_view a, std::string_view b);
/// The candidate with the fewest edits from word, if that is at most a third of the word's length (and at least 2 are
/// tried).
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

/// "a, b or c".
std::string join_or(std::span<const std::string> words);
/// Words with a separator between them.
std::string join(std::span<const std::string> words, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

}  // namespace orthant
