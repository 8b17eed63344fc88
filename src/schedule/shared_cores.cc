#include "schedule/shared_cores.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"

namespace orthant {

double seconds_on_shared_cores(const Timeline& timeline, double until_s, const std::vector<int64_t>& ranks_of_row,
                               int64_t cores, Collectives collectives) {
  ORTHANT_CHECK(cores >= 1 && ranks_of_row.size() == timeline.busy.size(), cores, ranks_of_row.size());
  std::vector<std::pair<double, int64_t>> changes;  // time, and change of the number of active ranks
  for (const Span& span : timeline.spans) {
    const int64_t ranks = ranks_of_row[static_cast<size_t>(span.rank)];
    const bool is_active = span.stream == Stream::compute ||
                           (span.stream == Stream::collective && collectives == Collectives::copying);
    if (!is_active || ranks == 0 || span.start >= until_s) continue;
    changes.emplace_back(span.start, ranks);
    changes.emplace_back(std::min(span.end, until_s), -ranks);
  }
  std::ranges::sort(changes);
  const bool is_pipeline = ranks_of_row.size() > 1;
  double seconds = until_s, before_s = 0;
  int64_t active = 0;
  for (const auto& [now_s, change] : changes) {
    if (active > cores) {
      const double longer = is_pipeline ? std::ceil(static_cast<double>(active) / static_cast<double>(cores))
                                        : static_cast<double>(active) / static_cast<double>(cores);
      seconds += (now_s - before_s) * (longer - 1);
    }
    active += change;
    before_s = now_s;
  }
  return seconds;
}

}  // namespace orthant
