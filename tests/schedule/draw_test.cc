// SVG drawings of timelines: well-formed, complete, consistent with the timeline, and readable for
// color-blind readers.
#include "schedule/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/pipeline/dual_pipe_v_plan.h"
#include "parallel/pipeline/interleaved_plan.h"
#include "parallel/pipeline/post_validation_plan.h"
#include "schedule/passes.h"
#include "schedule/trace.h"
#include "tests/parallel/pipeline/every_schedule.h"
#include "tests/schedule/generators.h"

namespace orthant::draw_test {
namespace {

int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

/// Whether every tag is closed, in the right order.
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
  durations.link_time = 0.25;
  durations.reductions = std::vector<std::vector<BucketReduction>>(4, {{1}});
  const Schedule schedule = add_reductions(add_messages(one_f_one_b(4, 8)), {1, 1, 1, 1});
  const Timeline timeline = simulate(schedule, durations);
  const std::string svg = draw_svg(schedule, timeline, "Planned");
  int boxes = 0;
  for (const Span& span : timeline.spans) boxes += span.end > span.start ? 1 : 0;
  EXPECT_EQ(count(svg, "</title></rect>"), boxes);
  EXPECT_EQ(count(svg, "class=\"box"), 4 * 8 * 2);
  EXPECT_NE(svg.find(">Planned: 4 pipeline ranks, 8 microbatches<"), std::string::npos);
  EXPECT_TRUE(balanced(svg));
  EXPECT_FALSE(balanced(svg.substr(0, svg.size() - 8)));
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(svg.find("2F5: "), std::string::npos);
  EXPECT_EQ(count(svg, "reduce gradients"), 1);  // in the legend
  EXPECT_EQ(count(svg, "activation message"), 1);
  EXPECT_EQ(count(svg, "gather weights"), 0);  // the schedule has no UNSHARD
}

TEST(Draw, NamesTheUnitOfTime) {
  const Schedule schedule = one_f_one_b(2, 2);
  Timeline timeline = simulate(schedule, Durations::of(1, 1, 1));
  EXPECT_NE(draw_svg(schedule, timeline, "Planned").find("makespan 9 s, bubble"), std::string::npos);
  timeline.unit = "turns";
  const std::string svg = draw_svg(schedule, timeline, "Planned");
  EXPECT_NE(svg.find("makespan 9 turns, bubble"), std::string::npos);
  EXPECT_EQ(count(svg, "turns"), 2);  // in the heading and at the end of the axis
}

TEST(Draw, ALegendThatIsLongTakesMoreLines) {
  using enum ActionKind;
  Random random(53);
  Durations durations = Durations::of(1, 1, 1);
  for (const ActionKind kind : {S, Z, T, E, EB, REDUCE}) durations = durations.with(kind, 1);
  durations.link_time = 0.25;
  const Schedule plain = random_cut_schedule(random, 2, 2, 6, {{S, Z, T}, true});
  const Schedule schedule = add_reductions(add_messages(plain), {1, 1});
  const std::string svg = draw_svg(schedule, simulate(schedule, durations), "Planned");
  const std::regex entry(
      "<rect x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"14\" .*\\n<text x=\"[0-9.]+\" y=\"[0-9]+\">([^<]+)<");
  std::set<std::string> lines;
  double lowest = 0;
  int entries = 0;
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), entry); it != std::sregex_iterator(); ++it) {
    const double x = std::stod((*it)[1]), y = std::stod((*it)[2]);
    EXPECT_LT(x + 20 + 6.6 * static_cast<double>((*it)[3].length()), 1200 - 64) << (*it)[3];
    lowest = std::max(lowest, y + 14);
    lines.insert(std::to_string(static_cast<int>(y + 4) / 20));
    ++entries;
  }
  EXPECT_GE(entries, 9);
  EXPECT_EQ(lines.size(), 2u);
  const size_t band = svg.find("class=\"band\"");
  EXPECT_GT(std::stod(svg.substr(svg.find("y=\"", band) + 3)), lowest);
}

TEST(Draw, LargeSchedulesDrawWithoutTooltips) {
  const Schedule schedule = one_f_one_b(16, 200);
  const std::string svg = draw_svg(schedule, simulate(schedule, Durations::of(1e-6, 1e-6, 1e-6)), "Planned");
  EXPECT_EQ(count(svg, "<title>"), 1);
  EXPECT_GT(count(svg, "<rect"), 16 * 200 * 2);
  EXPECT_TRUE(draw_svg(Schedule{}, Timeline{}, "Planned").ends_with("</svg>\n"));
}

using Color = std::array<double, 3>;

/// The color over a background, in CIE L*a*b*. Eye 0 has normal vision; eyes 1, 2 and 3 lack the long, middle or short
/// cones (Machado, Oliveira and Fernandes 2009).
Color seen(const std::string& color, double opacity, const std::string& ground, int eye) {
  const double eyes[4][3][3] = {
      {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
      {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
      {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
      {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}};
  Color light{}, rgb{};
  for (size_t i = 0; i < 3; ++i) {
    const auto channel = [&](const std::string& hex) {
      return std::stoi(hex.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    };
    const double mixed = opacity * channel(color) + (1 - opacity) * channel(ground);
    light[i] = mixed <= 0.04045 ? mixed / 12.92 : std::pow((mixed + 0.055) / 1.055, 2.4);
  }
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j) rgb[i] += eyes[eye][i][j] * light[j];
  for (double& each : rgb) each = std::clamp(each, 0.0, 1.0);
  const auto bent = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  const double x = bent((0.4124 * rgb[0] + 0.3576 * rgb[1] + 0.1805 * rgb[2]) / 0.95047);
  const double y = bent(0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]);
  const double z = bent((0.0193 * rgb[0] + 0.1192 * rgb[1] + 0.9505 * rgb[2]) / 1.08883);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

/// The least color difference between two kinds of box of equal height, or between a box and the background, over all
/// eyes, light and dark.
double least_difference(const std::string& svg) {
  std::set<std::tuple<double, std::string, double>> boxes;
  const std::regex box("height=\"([0-9.]+)\"(?: rx=\"2\")? fill=\"(#[0-9a-f]{6})\"(?: fill-opacity=\"([0-9.]+)\")?");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), box); it != std::sregex_iterator(); ++it)
    if (const double height = std::stod((*it)[1]); height > 14)  // excludes messages and the legend
      boxes.insert({height, (*it)[2], (*it)[3].length() > 0 ? std::stod((*it)[3]) : 1});
  double least = 1000;
  for (const std::string ground : {"#f0f2f5", "#1c2128"})
    for (int eye = 0; eye < 4; ++eye) {
      const Color behind = seen(ground, 1, ground, eye);
      std::map<double, std::vector<Color>> by_height;
      for (const auto& [height, color, opacity] : boxes) {
        auto& all = by_height.try_emplace(height, 1, behind).first->second;
        const Color own = seen(color, opacity, ground, eye);
        for (const Color& other : all)
          least = std::min(least, std::hypot(own[0] - other[0], own[1] - other[1], own[2] - other[2]));
        all.push_back(own);
      }
    }
  return least;
}

/// Number of computation boxes by height, as the height is written in the SVG.
std::map<std::string, int> heights(const std::string& svg) {
  std::map<std::string, int> found;
  const std::regex box("height=\"([0-9.]+)\"(?: rx=\"2\")? fill=\"#");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), box); it != std::sregex_iterator(); ++it)
    if (std::stod((*it)[1]) > 14) ++found[(*it)[1]];
  return found;
}

TEST(Draw, KindsAreDistinctForColorBlindReaders) {
  const Durations equal = Durations::of(1, 1, 1);
  for (const auto& [name, schedule] : every_schedule(4, 8)) {
    const std::string svg = draw_svg(schedule, simulate(schedule, equal), "Planned");
    EXPECT_GT(least_difference(svg), 12) << name;
    // Negative control: W in a green that looks like the blue of F without short cones.
    const std::string green = std::regex_replace(svg, std::regex("#cc79a7"), "#009e73");
    if (green != svg && stage_count(schedule) > 4) {
      EXPECT_LT(least_difference(green), 12) << name;
    }
    // Every box carries its number.
    EXPECT_EQ(count(svg, "class=\"box"), static_cast<int>(simulate(schedule, equal).spans.size()));
  }
  // Schedules with Actions of the vocabulary layers, of the optimizer, and of several stages per rank.
  Random random(52);
  Durations times = equal;
  for (const KindFacts& kind : action_kinds())
    if (is_vocabulary({kind.kind}) || is_step_action({kind.kind})) times = times.with(kind.kind, 1);
  for (const VocabularyKinds& cut : every_cut()) {
    const Schedule schedule = random_cut_schedule(random, 1, 2, 6, cut);
    const std::string svg = draw_svg(schedule, simulate(schedule, times), "Planned");
    EXPECT_GT(least_difference(svg), 12);
    if (!cut.output.empty()) {
      EXPECT_EQ(count(svg, ">output: softmax<"), 1);
      EXPECT_LT(least_difference(std::regex_replace(svg, std::regex("#7a3ff0"), "#0072f0")), 12);
    }
    EXPECT_EQ(count(svg, ">embedding, backward<"), cut.input ? 1 : 0);
    EXPECT_NE(chrome_trace(simulate(schedule, times)).find(cut.input ? "PP:0EB5" : "PP:0S5"), std::string::npos);
  }
  const Schedule finalized = with_post_validation(add_messages(dual_pipe_v(4, 8)));
  const std::string svg = draw_svg(finalized, simulate(finalized, times), "Planned");
  EXPECT_EQ(count(svg, ">optimizer, finalize<"), 1);
  EXPECT_GT(least_difference(svg), 12);
  EXPECT_LT(least_difference(std::regex_replace(svg, std::regex("#646464"), "#a0a0a0")), 12) << "W, to some eyes";
}

// The stages of one rank differ in height, not in color.
TEST(Draw, LaterStagesOfARankAreLower) {
  const Durations equal = Durations::of(1, 1, 1);
  const auto of_stages = [&](int stages) {
    const Schedule schedule = stages == 1 ? one_f_one_b(2, 2) : interleaved_1f1b(2, stages, 2);
    return heights(draw_svg(schedule, simulate(schedule, equal), "Planned"));
  };
  EXPECT_EQ(of_stages(1), (std::map<std::string, int>{{"30", 8}}));
  EXPECT_EQ(of_stages(2), (std::map<std::string, int>{{"30", 8}, {"16", 8}}));
  EXPECT_EQ(of_stages(4), (std::map<std::string, int>{{"30", 8}, {"25.33", 8}, {"20.67", 8}, {"16", 8}}));
}

// The curve has a step for each change of the memory, and a line for the device's memory if that is near.
TEST(Draw, HasTheMemoryOfARank) {
  const Schedule schedule = add_messages(one_f_one_b(2, 3));
  const Timeline timeline = simulate(schedule, Durations::of(1, 1, 1));
  MemoryCurve memory{.pipeline_rank = 1, .title = "memory of rank 1", .base_bytes = 1 << 30};
  memory.bytes.assign(schedule.rows[1].size(), 1 << 30);
  const std::string flat = draw_svg(schedule, timeline, "Planned", &memory);
  EXPECT_TRUE(balanced(flat));
  EXPECT_NE(flat.find("memory of rank 1: at most 2.0 GiB, of which 1.0 GiB all the time"), std::string::npos) << flat;
  EXPECT_EQ(flat.find("tensors may take"), std::string::npos);
  memory.limit_bytes = 3 * (int64_t{1} << 29), memory.limit_text = "tensors may take 1.5 GiB";
  for (size_t i = memory.bytes.size(); i-- > 0;) {  // from the last pass on
    memory.bytes[i] = 1 << 29;
    if (facts(schedule.rows[1][i].kind).stream == Stream::compute) break;
  }
  const std::string stepped = draw_svg(schedule, timeline, "Planned", &memory);
  EXPECT_NE(stepped.find("tensors may take 1.5 GiB"), std::string::npos);
  const auto steps = [](const std::string& svg) {
    const size_t begin = svg.find("<path class=\"memory\"");
    const std::string path = svg.substr(begin, svg.find("/>", begin) - begin);
    return std::ranges::count(path, 'H');
  };
  EXPECT_EQ(steps(flat), 2);  // before the first Action, and from it on
  EXPECT_EQ(steps(stepped), 3);
  EXPECT_EQ(draw_svg(schedule, timeline, "Planned").find("class=\"memory\" d="), std::string::npos);
}

}  // namespace
}  // namespace orthant::draw_test
