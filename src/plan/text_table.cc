#include "plan/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace orthant {

std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const bool right = i > 0 && !row[i].empty() && (std::isdigit(static_cast<unsigned char>(row[i][0])) != 0);
      line += right ? fmt::format(" {:>{}} ", row[i], widths[i]) : fmt::format(" {:<{}} ", row[i], widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace orthant
