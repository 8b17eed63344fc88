#include "schedule/bubbles.h"

#include <algorithm>
#include <limits>

namespace orthant {

double makespan_bubble(const Timeline& timeline) {
  return timeline.makespan_s - *std::max_element(timeline.busy_s.begin(), timeline.busy_s.end());
}

double own_bubble(const Timeline& timeline) {
  const size_t ranks = timeline.busy_s.size();
  std::vector<double> first_s(ranks, std::numeric_limits<double>::infinity()), last_s(ranks, 0);
  for (const Span& span : timeline.spans) {
    if (span.lane != Lane::compute) continue;
    const auto rank = static_cast<size_t>(span.rank);
    first_s[rank] = std::min(first_s[rank], span.start_s);
    last_s[rank] = std::max(last_s[rank], span.end_s);
  }
  double most_s = 0;
  for (size_t rank = 0; rank < ranks; ++rank)
    most_s = std::max(most_s, last_s[rank] - first_s[rank] - timeline.busy_s[rank]);
  return most_s;
}

}  // namespace orthant
