// A table for a terminal: aligned columns, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace orthant {

/// Rows of cells, two columns of blanks in front; a cell that starts with a digit stands to the right, but for the
/// first. What a last cell has beyond 120 columns goes on below it; where a row has nothing between its first and its
/// last cell, that begins behind the first.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace orthant
