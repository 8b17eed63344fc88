// Computes the three bubble measures from the spans of a Timeline.
#include "schedule/bubbles.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace orthant {

double idle_fraction(const Timeline& timeline) {
  const double all_s = timeline.makespan * static_cast<double>(timeline.busy.size());
  const double busy_s = std::accumulate(timeline.busy.begin(), timeline.busy.end(), 0.0);
  return all_s > 0 ? (all_s - busy_s) / all_s : 0;
}

double makespan_bubble(const Timeline& timeline) {
  return timeline.makespan - *std::max_element(timeline.busy.begin(), timeline.busy.end());
}

double max_rank_bubble(const Timeline& timeline) {
  const size_t ranks = timeline.busy.size();
  std::vector<double> first_s(ranks, std::numeric_limits<double>::infinity()), last_s(ranks, 0);
  for (const Span& span : timeline.spans) {
    // FINALIZE is in the compute stream but does not compute.
    if (span.stream != Stream::compute || span.action.kind == ActionKind::FINALIZE) continue;
    const auto rank = static_cast<size_t>(span.rank);
    first_s[rank] = std::min(first_s[rank], span.start);
    last_s[rank] = std::max(last_s[rank], span.end);
  }
  double most_s = 0;
  for (size_t rank = 0; rank < ranks; ++rank)
    most_s = std::max(most_s, last_s[rank] - first_s[rank] - timeline.busy[rank]);
  return most_s;
}

}  // namespace orthant
