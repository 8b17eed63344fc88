// Writes Chrome trace events and assigns overlapping spans to separate threads.
#include "schedule/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
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

// A span in the trace. Rounding both ends to nanoseconds keeps spans that follow each other apart.
struct Event {
  const Span* span;
  size_t thread;
  int64_t start_ns, end_ns;
};

std::vector<Event> place(const std::vector<Span>& spans,
                         std::map<std::pair<int, size_t>, std::vector<double>>& threads) {
  std::vector<Event> events;
  for (const Span& span : spans) {
    const auto stream = static_cast<size_t>(span.stream);
    const size_t thread = thread_for(threads[{span.rank, stream}], span);
    events.push_back({&span, stream + kStreams * thread, std::llround(span.start * 1e9), std::llround(span.end * 1e9)});
  }
  return events;
}

// Microseconds, with nanoseconds as decimals.
std::string in_us(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

// The kinds that read the message of a SEND, on the stage that receives it.
std::vector<Action> readers_of(const Action& send) {
  const Action receive = matching_message(send);
  if (send.kind == ActionKind::SEND_F) return {{ActionKind::F, receive.stage, receive.microbatch}};
  return {{ActionKind::B, receive.stage, receive.microbatch}, {ActionKind::I, receive.stage, receive.microbatch}};
}

// The arrows from sends to the computations that read their messages. A computation that begins before the send, by the
// error of the clocks, has none.
std::string flow_events(const std::vector<Event>& events) {
  std::map<Action, const Event*> computations;
  for (const Event& event : events)
    if (is_computation(event.span->action)) computations[event.span->action] = &event;
  std::string out;
  int id = 0;
  for (const Event& event : events) {
    const Action& send = event.span->action;
    if (send.kind != ActionKind::SEND_F && send.kind != ActionKind::SEND_B) continue;
    for (const Action& reader : readers_of(send)) {
      const auto found = computations.find(reader);
      if (found == computations.end() || found->second->start_ns < event.start_ns) continue;
      ++id;
      for (const auto& [phase, end] : {std::pair("\"s\"", &event), std::pair("\"f\",\"bp\":\"e\"", found->second)})
        fmt::format_to(std::back_inserter(out),
                       "{{\"ph\":{},\"id\":{},\"pid\":{},\"tid\":{},\"name\":\"{}\",\"cat\":\"message\",\"ts\":{}}},\n",
                       phase, id, end->span->rank, end->thread, to_string(send), in_us(end->start_ns));
    }
  }
  return out;
}

}  // namespace

std::string chrome_trace(const Timeline& timeline, const std::vector<std::pair<std::string, double>>& notes) {
  std::vector<Span> spans = timeline.spans;
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  std::map<std::pair<int, size_t>, std::vector<double>> threads;  // free times of the threads, by rank and stream
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (size_t rank = 0; rank < timeline.busy.size(); ++rank)
    fmt::format_to(
        std::back_inserter(out),
        "{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_name\",\"args\":{{\"name\":\"pipeline rank {0}\"}}}},\n", rank);
  const std::vector<Event> events = place(spans, threads);
  for (const Event& event : events) {
    const Span& span = *event.span;
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":\"{}{}\",\"cat\":\"{}\",\"ts\":{},"
                   "\"dur\":{},\"args\":{{\"stage\":{},\"microbatch\":{}}}}},\n",
                   span.rank, event.thread, kTracePrefix, to_string(span.action),
                   kStreamNames[static_cast<size_t>(span.stream)], in_us(event.start_ns),
                   in_us(event.end_ns - event.start_ns), span.action.stage, span.action.microbatch);
  }
  out += flow_events(events);
  for (const auto& [key, free_s] : threads)
    for (size_t thread = 0; thread < free_s.size(); ++thread)
      fmt::format_to(std::back_inserter(out),
                     "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}},\n",
                     key.first, key.second + kStreams * thread, kStreamNames[key.second]);
  if (out.ends_with(",\n")) out.erase(out.size() - 2, 1);
  std::vector<std::string> members = {fmt::format("\"unit\":\"{}\"", timeline.unit)};
  for (const auto& [name, value] : notes) members.push_back(fmt::format("\"{}\":{}", name, value));
  return fmt::format("{}],\"otherData\":{{{}}}}}\n", out, join(members, ","));
}

}  // namespace orthant
