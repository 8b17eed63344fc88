// The comparison of several runs as one HTML page, in the form of the report.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "report/data.h"

namespace orthant {

/// Number of runs whose lines a chart distinguishes, by five colors and three patterns.
inline constexpr size_t kMostRuns = 15;

/// The names of the runs: the last component of each folder, or the full paths if two of those are equal.
std::vector<std::string> run_names(std::span<const ReportData> runs);

/// The complete page: the difference of the losses at equal steps, curves on common axes, final figures, and the keys
/// of config.toml that differ. Needs 2 to kMostRuns runs. Runs may lack steps, files, or a common step.
std::string compare_page(std::span<const ReportData> runs);

}  // namespace orthant
