// The sections of a report that plot a quantity over the steps.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "report/chart.h"
#include "report/parts.h"
#include "report/progress.h"

namespace orthant {
namespace {

constexpr double kHalfWidth = 520;

// One line over the steps, shown in a card of half the page's width.
struct Line {
  std::string id, title, note, y_label, color;
  std::vector<Point> points;
  bool from_zero = true;
};

std::string line_card(const Line& line, const Unit& unit) {
  Chart chart{
      .title = line.title, .y_label = line.y_label, .from_zero = line.from_zero, .width = kHalfWidth, .height = 260};
  chart.series.push_back({.name = line.title,
                          .color = line.color,
                          .points = in_unit(thin_out(line.points, kMostPoints), unit),
                          .labeled = false});
  return card(line.id, line.title, line.note, responsive(chart, false));
}

// The curve of each validation set that the last validation had.
std::vector<Series> validation_set_series(const std::vector<ValidationMetrics>& validations) {
  std::vector<Series> all;
  if (validations.empty()) return all;
  for (const SetMetrics& last : validations.back().sets) {
    Series series{
        .name = fmt::format("{} {}", last.name, show(last.validation_loss, 3)), .color = "gray", .mark = Mark::kDashed};
    for (const ValidationMetrics& one : validations) {
      const auto found = std::ranges::find(one.sets, last.name, &SetMetrics::name);
      if (found != one.sets.end()) series.points.push_back({static_cast<double>(one.step), found->validation_loss});
    }
    series.points = thin_out(series.points, kMostPoints);
    all.push_back(std::move(series));
  }
  return all;
}

}  // namespace

std::string loss_section(const Metrics& metrics) {
  const auto loss = points_of(metrics.steps, [](const auto& m) { return m.loss; });
  const size_t reach = smoothing_reach(loss.size());
  const auto smoothed = smooth(loss, reach);
  Chart chart{
      .title = "Training and validation loss over steps and tokens", .y_label = "loss, nats per token", .height = 400};
  chart.series.push_back({.name = "each step",
                          .color = "blue",
                          .mark = Mark::kThin,
                          .points = thin_out(loss, kMostPoints),
                          .labeled = false});
  chart.series.push_back({.name = "training",
                          .value = smoothed.empty() ? "" : show(smoothed.back().y, 3),
                          .color = "blue",
                          .mark = Mark::kThick,
                          .points = thin_out(smoothed, kMostPoints)});
  const bool dots = metrics.validations.size() <= 60;  // more dots would overlap
  Series validation{.name = "validation", .color = "orange", .mark = dots ? Mark::kDots : Mark::kLine};
  for (const auto& one : metrics.validations) {
    validation.points.push_back({static_cast<double>(one.step), one.validation_loss});
  }
  validation.points = thin_out(validation.points, kMostPoints);
  if (!validation.points.empty()) validation.value = show(validation.points.back().y, 3);
  chart.series.push_back(std::move(validation));
  const std::vector<Series> sets = validation_set_series(metrics.validations);
  chart.series.insert(chart.series.end(), sets.begin(), sets.end());
  if (metrics.steps.size() > 1) {
    chart.top_axis = thin_out(points_of(metrics.steps, [](const auto& m) { return m.tokens; }), kMostPoints);
    chart.top_label = "tokens";
  }
  return card(
      "loss", "Loss",
      fmt::format("Thin: every step. Thick: mean of {} steps, of fewer at both ends. Orange: validation documents{}.",
                  2 * reach + 1, sets.empty() ? "" : "; dashed: each set of them"),
      responsive(chart, true));
}

std::string rate_section(const Metrics& metrics) {
  const auto points = points_of(metrics.steps, [](const auto& m) { return m.lr; });
  const double most = largest(points);
  const Unit unit = power_unit(most);
  return line_card(
      {"rate", "Learning rate", fmt::format("At most {:g}.", most), in_units("rate", unit), "purple", points}, unit);
}

std::string norm_section(const Metrics& metrics) {
  const auto points = points_of(metrics.steps, [](const auto& m) { return m.grad_norm; });
  const double middle = median(known_values(metrics.steps, [](const auto& m) { return m.grad_norm; }));
  return line_card({"norm", "Gradient norm", fmt::format("Before clipping; median {}.", show(middle, 3)), "global norm",
                    "green", points},
                   {});
}

std::string throughput_section(const Metrics& metrics) {
  const auto points = points_of(metrics.steps, [](const auto& m) { return m.tokens_per_second; });
  const double middle = median(known_values(metrics.steps, [](const auto& m) { return m.tokens_per_second; }));
  const Unit unit = count_unit(largest(points));
  Chart chart{.title = "Tokens per second over steps",
              .y_label = in_units("tokens per second", unit),
              .from_zero = true,
              .height = 260};
  const auto add = [&](const char* name, const char* color, Mark mark, const std::vector<Point>& values) {
    chart.series.push_back({.name = name,
                            .value = mark == Mark::kDashed ? format_count(middle) : "",
                            .color = color,
                            .mark = mark,
                            .points = in_unit(thin_out(values, kMostPoints), unit),
                            .labeled = mark == Mark::kDashed});
  };
  const bool dense = points.size() > kMostPoints;  // a dense line looks like a band, so means are drawn over it
  add("each step", "blue", dense ? Mark::kThin : Mark::kLine, points);
  if (dense) add("mean", "blue", Mark::kThick, thin_to_means(points, kMostPoints / 4));
  if (points.size() > 1 && std::isfinite(middle)) {
    const std::vector<Point> level = {{points.front().x, middle}, {points.back().x, middle}};
    add("median", "orange", Mark::kDashed, level);
  }
  const std::string note = dense ? "All ranks together. Thin: every step. Thick: means." : "All ranks together.";
  return card("throughput", "Throughput", note, responsive(chart, true));
}

namespace {

// The planned step by parts, and the heading of the measured one.
std::string planned_part(const PlannedTime& planned, double measured_s) {
  constexpr std::array kColors = {"blue", "green", "purple", "orange", "gray"};
  std::vector<Part> parts;
  for (const auto& [name, seconds] : planned.parts) {
    const std::string share = fmt::format("{:.1f}%, {}", 100 * seconds / planned.step_seconds, format_seconds(seconds));
    parts.push_back({name, kColors[parts.size() % kColors.size()], share, seconds});
  }
  const double longest = std::max(planned.step_seconds, measured_s);
  std::string body = fmt::format("<h3>Planned <b>{} a step</b>, of which {} exposed communication</h3>\n",
                                 format_seconds(planned.step_seconds), format_seconds(planned.exposed_seconds));
  body += strip(parts, longest);
  return body +
         fmt::format("<h3>Measured <b>{} a step</b> (median), {:+.1f}% compared with the plan. The full run:</h3>\n",
                     format_seconds(measured_s), 100 * (measured_s / planned.step_seconds - 1));
}

}  // namespace

std::string time_section(const Metrics& metrics, const std::optional<PlannedTime>& planned) {
  const auto& steps = metrics.steps;
  const double median_s = median(known_values(steps, [](const auto& m) { return m.step_seconds; }));
  const TimeSplit time = time_split(steps);
  // The parts may exceed the step if waits of different ranks overlap. The bar then has the length of the parts.
  const double whole = std::max(time.total, time.communication + time.data);
  const auto share = [&](double seconds) {
    return fmt::format("{:.1f}%, {}", whole > 0 ? 100 * seconds / whole : 0, format_seconds(seconds));
  };
  std::string body = planned ? planned_part(*planned, median_s) : "";
  body += strip({{"compute and everything else", "blue", share(time.rest()), time.rest()},
                 {"exposed communication", "orange", share(time.communication), time.communication},
                 {"waiting for data", "purple", share(time.data), time.data}},
                whole);
  const auto communication = points_of(steps, [](const auto& m) { return m.communication_seconds; });
  const auto data = points_of(steps, [](const auto& m) { return m.data_seconds; });
  const auto rest = points_of(steps, [](const auto& m) {
    return std::max(0.0, m.step_seconds - (std::isfinite(m.communication_seconds) ? m.communication_seconds : 0) -
                             (std::isfinite(m.data_seconds) ? m.data_seconds : 0));
  });
  const Unit unit = second_unit(median_s);
  const auto layer = [&](const char* name, const char* color, const std::vector<Point>& points) {
    return Series{.name = name, .color = color, .points = in_unit(thin_to_means(points, kMostPoints / 2), unit)};
  };
  Chart chart{.title = "Parts of each step's time", .y_label = unit.name + " per step", .stacked = true, .height = 240};
  chart.series = {layer("compute", "blue", rest), layer("exposed comm", "orange", communication),
                  layer("waiting for data", "purple", data)};
  return card("time", "Where the time goes",
              "The full run and each step, on rank 0. Exposed communication is the time in which the rank waits for "
              "messages and computes nothing.",
              body + responsive(chart, true));
}

std::string communication_sections(const Metrics& metrics, std::optional<int64_t> expected_sent,
                                   std::optional<int64_t> expected_received) {
  const auto bytes = points_of(metrics.steps, [](const auto& m) { return m.communication_bytes; });
  const auto calls = points_of(metrics.steps, [](const auto& m) { return m.communication_calls; });
  const Unit unit = byte_unit(largest(bytes));
  const double total = sum(known_values(metrics.steps, [](const auto& m) { return m.communication_bytes; }));
  const double middle = median(known_values(metrics.steps, [](const auto& m) { return m.communication_calls; }));
  const double received = sum(known_values(metrics.steps, [](const auto& m) { return m.received_bytes; }));
  std::string note = fmt::format("By rank 0; {} in all.", format_bytes(total));
  if (expected_sent) note += fmt::format(" Planned: {} bytes a step.", grouped(*expected_sent));
  if (received > 0) note += fmt::format(" Rank 0 receives {} in all.", format_bytes(received));
  if (expected_received) note += fmt::format(" Planned: {} bytes received a step.", grouped(*expected_received));
  const Line sent = {"communication", "Bytes sent", note, unit.name + " per step", "orange", bytes};
  const Line started = {"calls",
                        "Communication calls",
                        fmt::format("Started by rank 0 in each step; median {:g}.", middle),
                        "calls per step",
                        "orange",
                        calls};
  return line_card(sent, unit) + line_card(started, {});
}

}  // namespace orthant
