// Chrome traces of planned and measured timelines: the exact text of a tiny schedule, and the laws that viewers rely
// on. Negative controls: traces with one mistake each are refused.
#include "schedule/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "schedule/measured.h"
#include "tests/schedule/generators.h"
#include "tests/support/temp_folder.h"

namespace orthant::trace_test {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the first broken law, or "" if there is none: spans have a process and no negative time, the spans of a
/// thread do not overlap, and each arrow has two ends, the second no earlier, at the starts of a send and of a
/// computation.
std::string problem_of(const Json& trace) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> threads;
  std::map<std::pair<int, double>, std::string> starts;  // names of the spans, by process and start
  std::map<int, std::vector<Json>> arrows;
  std::map<int, int> processes;
  for (const Json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase == "M" && event.at("name") == "process_name") ++processes[event.at("pid")];
    if (phase == "s" || phase == "f") arrows[event.at("id")].push_back(event);
    if (phase != "X") continue;
    const double start = event.at("ts"), duration = event.at("dur");
    if (start < 0 || duration < 0) return "negative time";
    threads[{event.at("pid"), event.at("tid")}].emplace_back(start, start + duration);
    starts[{event.at("pid"), start}] += event.at("name").get<std::string>() + " ";
  }
  for (auto& [thread, spans] : threads) {
    if (processes[thread.first] != 1) return "a process without a name";
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i)
      if (spans[i - 1].second > spans[i].first + 1e-7) return "overlap";
  }
  for (const auto& [id, ends] : arrows) {
    if (ends.size() != 2 || ends[0]["ph"] != "s" || ends[1]["ph"] != "f" || ends[1]["bp"] != "e") return "loose arrow";
    if (ends[0]["name"] != ends[1]["name"]) return "an arrow with two names";
    if (ends[0]["ts"] > ends[1]["ts"]) return "an arrow back in time";
    for (const Json& end : ends)
      if (!starts.contains({end["pid"], end["ts"]})) return "an arrow without a span";
    if (starts[{ends[0]["pid"], ends[0]["ts"]}].find(ends[0]["name"].get<std::string>()) == std::string::npos)
      return "an arrow that begins at no send";
  }
  return "";
}

size_t count(const Json& trace, const std::string& phase) {
  return static_cast<size_t>(
      std::ranges::count_if(trace["traceEvents"], [&](const Json& event) { return event["ph"] == phase; }));
}

size_t sends_of(const Timeline& timeline) {
  return static_cast<size_t>(std::ranges::count_if(timeline.spans, [](const Span& span) {
    return span.action.kind == ActionKind::SEND_F || span.action.kind == ActionKind::SEND_B;
  }));
}

// The file can be opened in a viewer.
TEST(ChromeTrace, OfATinySchedule) {
  Durations durations = Durations::of(0.001, 0.001, 0.001);
  durations.link_time = 0.0005;
  EXPECT_EQ(chrome_trace(simulate(add_messages(one_f_one_b(2, 1)), durations), {{"step", 3}}),
            slurp(ORTHANT_SOURCE_DIR "/tests/golden/tiny_trace.json"));
}

TEST(ChromeTrace, KeepsTheLawsOfViewers) {
  Random random(51);
  Durations durations = Durations::of(2, 3, 1);
  durations.link_time = 2.5;
  for (int round = 0; round < 30; ++round) {
    const Schedule schedule = with_weights(add_messages(random_schedule(random, 3, 6, 4)));
    const Timeline timeline = simulate(schedule, durations);
    const Json trace = parse_json(chrome_trace(timeline), "trace");
    ASSERT_EQ(problem_of(trace), "") << round;
    EXPECT_EQ(count(trace, "X"), timeline.spans.size());
    EXPECT_EQ(count(trace, "s"), sends_of(timeline)) << "one arrow for each message";
  }
  const Json empty = parse_json(chrome_trace(Timeline{}), "trace");
  EXPECT_TRUE(empty["traceEvents"].empty());
}

// Spans that follow each other without a gap stay apart when their ends are rounded.
TEST(ChromeTrace, RoundingMakesNoOverlap) {
  for (int round = 1; round < 300; ++round) {
    const Timeline timeline = simulate(add_messages(zb_h1(3, 5)), Durations::of(1e-6 / round, 1.7e-6 / round, 1.3e-6));
    ASSERT_EQ(problem_of(parse_json(chrome_trace(timeline), "trace")), "") << round;
  }
}

// A measured step has the same form. If, by the clocks, a message would arrive before it was sent,
// its arrow is left out.
TEST(ChromeTrace, OfAMeasuredStep) {
  const Schedule schedule = add_messages(one_f_one_b(2, 2));
  const auto trace_of = [&](double ahead_s) {
    const Timeline simulated = simulate(schedule, Durations::of(1, 1, 1));
    std::vector<std::vector<std::pair<double, double>>> rows(2);
    for (const Span& span : simulated.spans)
      rows[static_cast<size_t>(span.rank)].emplace_back(10 + span.start - span.rank * ahead_s,
                                                        10 + span.end - span.rank * ahead_s);
    const MeasuredStep measured{.step = 4, .schedule = schedule, .timeline = measured_timeline(schedule, rows)};
    return parse_json(to_json(measured), "trace");
  };
  EXPECT_EQ(problem_of(trace_of(0)), "");
  EXPECT_EQ(count(trace_of(0), "s"), 4u);
  EXPECT_EQ(problem_of(trace_of(0.5)), "");
  EXPECT_EQ(count(trace_of(0.5), "s"), 3u) << "all but that of 0SEND_F0";
  EXPECT_EQ(trace_of(0)["otherData"]["step"], 4);
  EXPECT_EQ(trace_of(0)["otherData"]["unit"], "s");
}

TEST(ChromeTrace, MistakesAreFound) {
  Durations durations = Durations::of(1, 1, 1);
  durations.link_time = 0.5;
  const std::string good = chrome_trace(simulate(add_messages(one_f_one_b(2, 2)), durations));
  const auto damaged = [&](const std::string& what, const std::string& by) {
    std::string text = good;
    EXPECT_NE(text.find(what), std::string::npos) << what;
    return problem_of(parse_json(text.replace(text.find(what), what.size(), by), "trace"));
  };
  EXPECT_EQ(damaged("\"dur\":1000000.000", "\"dur\":-1"), "negative time");
  EXPECT_EQ(damaged("\"dur\":1000000.000", "\"dur\":1000001"), "overlap");
  EXPECT_EQ(damaged("\"process_name\"", "\"other\""), "a process without a name");
  EXPECT_EQ(damaged("\"ph\":\"f\"", "\"ph\":\"t\""), "loose arrow");
  EXPECT_EQ(damaged("\"cat\":\"message\",\"ts\":1000000.000", "\"cat\":\"message\",\"ts\":9000000"),
            "an arrow back in time");
  EXPECT_EQ(damaged("\"cat\":\"message\",\"ts\":1000000.000", "\"cat\":\"message\",\"ts\":1000000.001"),
            "an arrow without a span");
}

}  // namespace
}  // namespace orthant::trace_test
