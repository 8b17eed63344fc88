// Aligns the columns of a table and wraps its last column.
#include "base/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/text.h"

namespace orthant {
namespace {

// Breaks text at blanks into lines of at most `columns` columns.
std::vector<std::string> broken(const std::string& text, size_t columns) {
  std::vector<std::string> lines(1);
  for (const std::string& word : split(text, ' ')) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > columns) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

}  // namespace

std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  constexpr size_t kMostColumns = 120, kLeastRemark = 30;
  std::string out;
  for (const auto& row : rows) {
    std::string line = " ";
    // A row with only a name and a remark leaves out the columns between them.
    const bool remark_alone = row.size() > 2 && std::all_of(row.begin() + 1, row.end() - 1,
                                                            [](const std::string& cell) { return cell.empty(); });
    for (size_t i = 0; i < row.size(); ++i) {
      if (remark_alone && i > 0 && i + 1 < row.size()) continue;
      const bool right = i > 0 && !row[i].empty() && (std::isdigit(static_cast<unsigned char>(row[i][0])) != 0);
      const size_t here = line.size() + 1;
      std::string cell = row[i];
      if (i > 0 && i + 1 == widths.size() && here + cell.size() > kMostColumns) {
        cell = join(broken(cell, std::max(kLeastRemark, kMostColumns - std::min(kMostColumns, here))),
                    "\n" + std::string(here, ' '));
      }
      line += right ? fmt::format(" {:>{}} ", cell, widths[i]) : fmt::format(" {:<{}} ", cell, widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace orthant
