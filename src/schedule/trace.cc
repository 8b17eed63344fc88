// Writes Chrome trace events and assigns overlapping spans to separate threads.
#include "schedule/trace.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {
namespace {

constexpr size_t kStreams = 4;
constexpr std::array<std::string_view, kStreams> kStreamNames = {"compute", "send", "receive", "collective"};

/// Index of a thread of the stream that is free when the span starts; adds one if needed. `free_s` is the time at which
/// each thread is free.
size_t thread_for(std::vector<double>& free_s, const Span& span) {
  const auto found = std::find_if(free_s.begin(), free_s.end(), [&](double at_s) { return at_s <= span.start; });
  const auto index = static_cast<size_t>(found - free_s.begin());
  if (found == free_s.end()) free_s.push_back(0);
  free_s[index] = span.end;
  return index;
}

}  // namespace

std::string chrome_trace(const Timeline& timeline, const std::vector<std::pair<std::string, double>>& notes) {
  std::vector<Span> spans = timeline.spans;
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  std::map<std::pair<int, size_t>, std::vector<double>> threads;  // free times of the threads, by rank and stream
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (size_t rank = 0; rank < timeline.busy.size(); ++rank)
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_name\",\"args\":{{\"name\":\"rank {0}\"}}}},\n",
                   rank);
  for (const Span& span : spans) {
    const auto stream = static_cast<size_t>(span.stream);
    const size_t thread = thread_for(threads[{span.rank, stream}], span);
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"{}{}\",\"cat\":\"{}\",\"ts\":{:.3f},"
                   "\"dur\":{:.3f},\"args\":{{\"stage\":{},\"microbatch\":{}}}}},\n",
                   span.rank, stream + kStreams * thread, kTracePrefix, to_string(span.action), kStreamNames[stream],
                   span.start * 1e6, (span.end - span.start) * 1e6, span.action.stage, span.action.microbatch);
  }
  for (const auto& [key, free_s] : threads)
    for (size_t thread = 0; thread < free_s.size(); ++thread)
      fmt::format_to(std::back_inserter(out),
                     "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}},\n",
                     key.first, key.second + kStreams * thread, kStreamNames[key.second]);
  if (out.ends_with(",\n")) out.erase(out.size() - 2, 1);
  std::vector<std::string> members;
  for (const auto& [name, value] : notes) members.push_back(fmt::format("\"{}\":{}", name, value));
  return fmt::format("{}],\"otherData\":{{{}}}}}\n", out, join(members, ","));
}

}  // namespace orthant
