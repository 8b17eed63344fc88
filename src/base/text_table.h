// Formats a table for a terminal: aligned columns, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace orthant {

/// Formats rows of cells, indented by two blanks. A cell that starts with a digit is aligned to the right, unless it is
/// the first of its row. A last cell that would pass column 120 is wrapped onto further lines, and so is a first cell
/// of more than 56 columns. If all cells between the first and the last are empty, the last one begins right after the
/// first column.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace orthant
