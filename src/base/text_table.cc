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
  constexpr size_t kMostColumns = 120, kMostFirst = 56, kLeastRemark = 30;
  std::vector<size_t> widths;
  std::vector<std::vector<std::string>> names;  // the lines of each first cell
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    names.push_back(broken(row[0], kMostFirst - 2));  // later lines are indented by two more
    for (const std::string& line : names.back()) widths[0] = std::max(widths[0], line.size());
    for (size_t i = 1; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::vector<std::string>& row = rows[r];
    std::string line = " ";
    // A row with only a name and a remark leaves out the columns between them.
    const bool remark_alone = row.size() > 2 && std::all_of(row.begin() + 1, row.end() - 1,
                                                            [](const std::string& cell) { return cell.empty(); });
    size_t last_at = 0;  // column of the last cell
    std::vector<std::string> remark;
    for (size_t i = 0; i < row.size(); ++i) {
      if (remark_alone && i > 0 && i + 1 < row.size()) continue;
      const bool right = i > 0 && !row[i].empty() && (std::isdigit(static_cast<unsigned char>(row[i][0])) != 0);
      last_at = line.size() + 1;
      std::string cell = i == 0 ? names[r][0] : row[i];
      if (i > 0 && i + 1 == widths.size() && last_at + cell.size() > kMostColumns) {
        remark = broken(cell, std::max(kLeastRemark, kMostColumns - std::min(kMostColumns, last_at)));
        cell = remark[0];
      }
      line += right ? fmt::format(" {:>{}} ", cell, widths[i]) : fmt::format(" {:<{}} ", cell, widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    for (size_t i = 1; i < std::max(names[r].size(), remark.size()); ++i) {
      line = i < names[r].size() ? "    " + names[r][i] : "";
      if (i < remark.size()) line = fmt::format("{:<{}}{}", line, last_at, remark[i]);
      out += line + "\n";
    }
  }
  return out;
}

}  // namespace orthant
