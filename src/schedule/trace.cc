#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "schedule/draw.h"

namespace orthant {
namespace {

constexpr std::string_view kLaneNames[] = {"compute", "send", "receive", "collective"};
constexpr int kLanes = 4;

/// Threads of one lane; each holds spans that do not overlap.
int thread_for(std::vector<double>& free_s, const Span& span) {
  const auto found = std::find_if(free_s.begin(), free_s.end(), [&](double at_s) { return at_s <= span.start_s; });
  const auto index = found - free_s.begin();
  if (found == free_s.end()) free_s.push_back(0);
  free_s[static_cast<size_t>(index)] = span.end_s;
  return static_cast<int>(index);
}

}  // namespace

std::string chrome_trace(const Timeline& timeline, const std::vector<std::pair<std::string, double>>& notes) {
  std::vector<Span> spans = timeline.spans;
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start_s < b.start_s; });
  std::map<std::pair<int, int>, std::vector<double>> threads;  // by rank and lane: when each is free
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (size_t rank = 0; rank < timeline.busy_s.size(); ++rank)
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_name\",\"args\":{{\"name\":\"rank {0}\"}}}},\n",
                   rank);
  for (const Span& span : spans) {
    const int lane = static_cast<int>(span.lane);
    const int thread = thread_for(threads[{span.rank, lane}], span);
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"PP:{}\",\"cat\":\"{}\",\"ts\":{:.3f},"
                   "\"dur\":{:.3f},\"args\":{{\"stage\":{},\"microbatch\":{}}}}},\n",
                   span.rank, lane + kLanes * thread, to_string(span.action), kLaneNames[lane], span.start_s * 1e6,
                   (span.end_s - span.start_s) * 1e6, span.action.stage, span.action.microbatch);
  }
  for (const auto& [key, free_s] : threads)
    for (size_t thread = 0; thread < free_s.size(); ++thread)
      fmt::format_to(std::back_inserter(out),
                     "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}},\n",
                     key.first, key.second + kLanes * static_cast<int>(thread), kLaneNames[key.second]);
  if (out.ends_with(",\n")) out.erase(out.size() - 2, 1);
  std::vector<std::string> members;
  for (const auto& [name, value] : notes) members.push_back(fmt::format("\"{}\":{}", name, value));
  return fmt::format("{}],\"otherData\":{{{}}}}}\n", out, join(members, ","));
}

}  // namespace orthant
