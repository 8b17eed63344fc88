// Pictures: well-formed, complete, and true to the timeline.
#include "schedule/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tests/schedule/generators.h"

namespace orthant {
namespace {

int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

/// Whether every tag that is opened is closed, in order.
bool balanced(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)[^>]*?(/?)>");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), tag); it != std::sregex_iterator(); ++it) {
    if ((*it)[3].length() > 0) continue;
    if ((*it)[1].length() == 0) {
      open.push_back((*it)[2]);
    } else {
      if (open.empty() || open.back() != (*it)[2]) return false;
      open.pop_back();
    }
  }
  return open.empty();
}

TEST(Draw, HasABoxForEverySpanThatTakesTime) {
  Durations durations = Durations::of(1, 1, 1);
  durations.link_s = 0.25;
  durations.reduce_s = {1};
  const Schedule schedule = with_reductions(add_messages(one_f_one_b(4, 8)), {1, 1, 1, 1});
  const Timeline timeline = simulate(schedule, durations);
  const std::string svg = draw_svg(schedule, timeline);
  int boxes = 0;
  for (const Span& span : timeline.spans) boxes += span.end_s > span.start_s ? 1 : 0;
  EXPECT_EQ(count(svg, "</title></rect>"), boxes);
  EXPECT_EQ(count(svg, "class=\"box"), 4 * 8 * 2);
  EXPECT_TRUE(balanced(svg));
  EXPECT_FALSE(balanced(svg.substr(0, svg.size() - 8)));
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(svg.find("2F5: "), std::string::npos);
  EXPECT_EQ(count(svg, "reduce gradients"), 1);  // in the legend
  EXPECT_EQ(count(svg, "activation message"), 1);
  EXPECT_EQ(count(svg, "gather weights"), 0);  // not in the schedule
}

TEST(Draw, LargeSchedulesDrawWithoutTooltips) {
  const Schedule schedule = one_f_one_b(16, 200);
  const std::string svg = draw_svg(schedule, simulate(schedule, Durations::of(1e-6, 1e-6, 1e-6)));
  EXPECT_EQ(count(svg, "<title>"), 1);
  EXPECT_GT(count(svg, "<rect"), 16 * 200 * 2);
  EXPECT_TRUE(draw_svg(Schedule{}, Timeline{}).ends_with("</svg>\n"));
}

TEST(ChromeTrace, NoTwoSpansOfAThreadOverlap) {
  Random random(51);
  Durations durations = Durations::of(2, 3, 1);
  durations.link_s = 2.5;
  for (int round = 0; round < 30; ++round) {
    const Schedule schedule = with_weights(add_messages(random_schedule(random, 3, 6, 4)));
    const Timeline timeline = simulate(schedule, durations);
    const nlohmann::ordered_json trace = parse_json(chrome_trace(timeline), "trace");
    std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> threads;
    size_t spans = 0;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      ++spans;
      threads[{event["pid"], event["tid"]}].push_back({event["ts"], event["dur"]});
    }
    EXPECT_EQ(spans, timeline.spans.size());
    for (auto& [thread, times] : threads) {
      std::sort(times.begin(), times.end());
      for (size_t i = 1; i < times.size(); ++i)
        ASSERT_LE(times[i - 1].first + times[i - 1].second, times[i].first + 1e-6);
    }
  }
  const auto empty = parse_json(chrome_trace(Timeline{}), "trace");
  EXPECT_TRUE(empty["traceEvents"].empty());
}

}  // namespace
}  // namespace orthant
