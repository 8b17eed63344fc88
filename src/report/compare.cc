#include "report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <set>

#include "base/errors.h"
#include "base/text.h"
#include "config/changes.h"
#include "report/chart.h"
#include "report/differences.h"
#include "report/parts.h"
#include "report/progress.h"

namespace orthant {
namespace {

using Runs = std::span<const ReportData>;
using Names = std::vector<std::string>;
using StepValue = double (*)(const StepMetrics&);

double loss_of(const StepMetrics& m) { return m.loss; }

// The line of a run. Colors repeat after five runs, with another pattern. Each line is narrower than the one before it,
// so that equal lines show as stripes.
Series line_of(const Names& names, size_t run) {
  constexpr double kWidest = 4.2, kNarrowest = 1.4;
  constexpr std::array kColors = {"blue", "orange", "green", "purple", "gray"};
  constexpr std::array kPatterns = {Mark::kLine, Mark::kDashed, Mark::kDotted};
  return {.name = names[run],
          .color = kColors[run % kColors.size()],
          .mark = kPatterns[run / kColors.size() % kPatterns.size()],
          .stroke_width =
              kWidest - (kWidest - kNarrowest) * static_cast<double>(run) / static_cast<double>(names.size() - 1)};
}

// A chart of one quantity, with one line for each run.
struct Curve {
  std::string id, title, note, y_label;
  std::function<std::vector<Point>(const ReportData&)> points;
  Unit (*unit)(double) = [](double) { return Unit(); };
  bool from_zero = true;
};

std::string curve_card(const Curve& curve, Runs runs, const Names& names) {
  std::vector<std::vector<Point>> lines;
  double most = 0;
  for (const ReportData& run : runs) most = std::max(most, largest(lines.emplace_back(curve.points(run))));
  const Unit unit = curve.unit(most);
  Chart chart{.title = curve.title,
              .y_label = in_units(curve.y_label, unit),
              .from_zero = curve.from_zero,
              .lists_names = true,
              .width = 520,
              .height = 260};
  for (size_t run = 0; run < runs.size(); ++run) {
    Series& series = chart.series.emplace_back(line_of(names, run));
    series.points = in_unit(thin_out(lines[run], kMostPoints), unit);
  }
  return card(curve.id, curve.title, curve.note, responsive(chart, false));
}

Curve step_curve(
    std::string id, std::string title, std::string note, std::string y_label, StepValue value,
    Unit (*unit)(double) = [](double) { return Unit(); }) {
  return {std::move(id),
          std::move(title),
          std::move(note),
          std::move(y_label),
          [value](const ReportData& run) { return points_of(run.metrics.steps, value); },
          unit};
}

std::vector<Point> validation_points(const ReportData& run) {
  std::vector<Point> points;
  for (const auto& one : run.metrics.validations)
    points.push_back({static_cast<double>(one.step), one.validation_loss});
  return points;
}

// The training loss over steps or tokens: a thin line through every step, and the mean of neighbors over it.
std::string loss_card(Runs runs, const Names& names, bool over_tokens) {
  Chart chart{.title = over_tokens ? "Training loss over tokens" : "Training loss over steps",
              .x_label = over_tokens ? "tokens" : "step",
              .y_label = "loss, nats per token",
              .lists_names = true,
              .height = 400};
  std::vector<Series> means;
  for (size_t run = 0; run < runs.size(); ++run) {
    const auto& steps = runs[run].metrics.steps;
    auto points = points_of(steps, loss_of);
    for (size_t i = 0; over_tokens && i < points.size(); ++i) points[i].x = static_cast<double>(steps[i].tokens);
    Series& mean = means.emplace_back(line_of(names, run));
    mean.points = thin_out(smooth(points, smoothing_reach(points.size())), kMostPoints);
    chart.series.push_back({.name = names[run] + ", each step",
                            .color = mean.color,
                            .mark = Mark::kThin,
                            .points = thin_out(points, kMostPoints),
                            .labeled = false});
  }
  chart.series.insert(chart.series.end(), means.begin(), means.end());
  return card(over_tokens ? "loss-tokens" : "loss", over_tokens ? "Loss by tokens" : "Loss by steps",
              "Training loss. Thin: every step. Thick: means of neighboring steps. Lines on top of each other show as "
              "stripes.",
              responsive(chart, true));
}

std::string heading(const Names& names, size_t run) { return line_sample(line_of(names, run)) + escape(names[run]); }

struct Row {
  std::string name;                // escaped
  std::vector<std::string> cells;  // escaped, one for each column
};

std::string table_of(const std::string& corner, const std::vector<std::string>& columns, const std::vector<Row>& rows) {
  std::string out = fmt::format("<div class=\"wide\"><table class=\"runs\">\n<tr><th>{}</th>", corner);
  for (const std::string& column : columns) out += fmt::format("<th><div>{}</div></th>", column);
  out += "</tr>\n";
  for (const Row& row : rows) {
    out += fmt::format("<tr><td><div>{}</div></td>", row.name);
    for (const std::string& cell : row.cells) out += fmt::format("<td><div>{}</div></td>", cell);
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::vector<std::string> run_columns(const Names& names) {
  std::vector<std::string> columns;
  for (size_t run = 0; run < names.size(); ++run) columns.push_back(heading(names, run));
  return columns;
}

// The final figures of a run, in the order of the table, with "-" for those that are not known.
std::vector<std::pair<std::string, std::string>> figures_of(const Metrics& metrics) {
  const auto& steps = metrics.steps;
  const auto middle = [&](StepValue value) { return median(known_values(steps, value)); };
  const auto known = [](double value, std::string (*text)(double)) {
    return std::isfinite(value) ? text(value) : std::string("-");
  };
  const TimeSplit time = time_split(steps);
  const auto* best = best_validation(metrics);
  const bool any = !steps.empty();
  return {{"steps", any ? grouped(steps.back().step) : "0"},
          {"tokens", any ? format_count(static_cast<double>(steps.back().tokens)) : "0"},
          {"last training loss", any ? show(steps.back().loss, 6) : "-"},
          {"best validation loss",
           best ? fmt::format("{} (step {})", show(best->validation_loss, 6), grouped(best->step)) : "-"},
          {"its bits per byte", best ? show(best->bits_per_byte, 4) : "-"},
          {"last gradient norm", any ? show(steps.back().grad_norm, 4) : "-"},
          {"tokens per second, median",
           known(middle([](const StepMetrics& m) { return m.tokens_per_second; }), format_count)},
          {"step time, median", known(middle([](const StepMetrics& m) { return m.step_seconds; }), format_seconds)},
          {"MFU, median", known(middle([](const StepMetrics& m) { return m.mfu; }),
                                [](double mfu) { return show(100 * mfu, 1) + "%"; })},
          {"exposed communication", time.total > 0 ? show(100 * time.communication / time.total, 1) + "%" : "-"},
          {"peak memory of the largest rank",
           any ? format_bytes(static_cast<double>(steps.back().peak_memory_bytes)) : "-"},
          {"time of all steps", any ? format_seconds(time.total) : "-"}};
}

std::string figures_card(Runs runs, const Names& names) {
  std::vector<Row> rows;
  for (const ReportData& run : runs) {
    const auto figures = figures_of(run.metrics);
    rows.resize(figures.size());
    for (size_t i = 0; i < figures.size(); ++i) {
      rows[i].name = figures[i].first;
      rows[i].cells.push_back(figures[i].second);
    }
  }
  return card("figures", "Final figures", "After the last step of each run.", table_of("", run_columns(names), rows));
}

std::string keys_card(Runs runs, const Names& names) {
  std::vector<std::optional<Config>> configs;
  for (const ReportData& run : runs) configs.push_back(run.config);
  std::vector<Row> rows;
  for (const KeyValues& key : differing_keys(configs)) {
    if (key.key == "job.dump_folder") continue;  // it differs between all runs, and the header has it
    Row& row = rows.emplace_back(Row{.name = "<code>" + key.key + "</code>", .cells = {}});
    for (const std::string& value : key.values) {
      row.cells.push_back(value.empty() ? "-" : "<code>" + escape(value) + "</code>");
    }
  }
  const bool known = std::ranges::count_if(configs, [](const auto& config) { return config.has_value(); }) > 1;
  return card("keys", "Settings that differ", "Keys of config.toml. Equal keys and job.dump_folder are left out.",
              !known         ? missing("Fewer than two of the runs have a config.toml that can be read.")
              : rows.empty() ? missing("All other keys are equal.")
                             : table_of("key", run_columns(names), rows));
}

struct LossDifference {
  size_t run = 0;
  Difference difference;
};

// Returns the sentence about the losses of all runs.
std::string loss_sentence(Runs runs, const Names& names) {
  const auto first = points_of(runs[0].metrics.steps, loss_of);
  LossDifference largest;
  size_t compared = 0, equal = 0;
  int64_t steps = 0;
  for (size_t run = 1; run < runs.size(); ++run) {
    const Difference difference = difference_of(first, points_of(runs[run].metrics.steps, loss_of));
    if (difference.common_steps == 0) continue;
    ++compared, equal += difference.is_equal();
    steps = compared == 1 ? difference.common_steps : std::min(steps, difference.common_steps);
    if (largest.run == 0 || difference.largest > largest.difference.largest) largest = {run, difference};
  }
  if (compared == 0) {
    return fmt::format("No other run has a step in common with {}, so the losses cannot be compared step by step.",
                       escape(names[0]));
  }
  if (equal == compared && compared + 1 == runs.size()) {
    return fmt::format("The losses of all {} runs are equal in every bit at {}.", runs.size(),
                       counted(steps, "common step"));
  }
  if (equal == compared) {
    return fmt::format(
        "The losses of {} of {} runs are equal in every bit at equal steps; the others have no step in "
        "common with {}.",
        compared + 1, runs.size(), escape(names[0]));
  }
  const Difference& most = largest.difference;
  if (most.largest == 0) return "At some common steps, only one of two runs has a loss; all other losses are equal.";
  return fmt::format(
      "The largest difference of the losses from those of {} at equal steps is {:.2g} (relative {:.2g}): {} at step "
      "{}.",
      escape(names[0]), most.largest, most.relative, escape(names[largest.run]), grouped(most.largest_step));
}

std::string difference_cell(const Difference& difference) {
  const auto lines = split(text_of(difference), ';');
  return lines.size() == 1 ? lines[0] : fmt::format("{}<br><small>{}</small>", lines[0], trim(lines[1]));
}

std::string differences_card(Runs runs, const Names& names) {
  std::vector<Row> rows;
  const auto norm = [](const StepMetrics& m) { return m.grad_norm; };
  const auto& first = runs[0];
  for (size_t run = 1; run < runs.size(); ++run) {
    const ReportData& other = runs[run];
    const Difference loss =
        difference_of(points_of(first.metrics.steps, loss_of), points_of(other.metrics.steps, loss_of));
    rows.push_back(
        {heading(names, run),
         {loss.common_steps == 0 ? "no common step" : difference_cell(loss),
          difference_cell(difference_of(points_of(first.metrics.steps, norm), points_of(other.metrics.steps, norm))),
          difference_cell(difference_of(validation_points(first), validation_points(other))),
          grouped(loss.common_steps)}});
  }
  return card("differences", "Differences at equal steps",
              fmt::format("The largest difference of each run from {}. Runs that differ only in their layout differ by "
                          "rounding at most, and by no bit if the layout keeps the order of sums.",
                          escape(names[0])),
              table_of("run", {"training loss", "gradient norm", "validation loss", "common steps"}, rows));
}

std::string compare_header(Runs runs, const Names& names) {
  std::string out =
      fmt::format("<header>\n<p class=\"brand\">Orthant, a comparison</p>\n<h1>{} runs</h1>\n<dl>\n", runs.size());
  for (size_t run = 0; run < runs.size(); ++run) {
    const ReportData& data = runs[run];
    std::string about = data.folder;
    if (!data.description.empty()) about += ": " + data.description;
    for (const auto& [label, value] : data.facts) {
      if (label == "Mesh" || label == "Device") about += "; " + value;
    }
    out += fmt::format("<div class=\"run\"><dt>{}</dt><dd>{}</dd></div>\n", heading(names, run), escape(about));
  }
  out += fmt::format("</dl>\n<p class=\"lead\">{}</p>\n</header>\n", loss_sentence(runs, names));
  for (const ReportData& data : runs) {
    for (const auto& problem : data.problems) out += missing("Not shown: " + escape(problem));
  }
  return out;
}

}  // namespace

std::vector<std::string> run_names(std::span<const ReportData> runs) {
  Names names, paths;
  for (const ReportData& run : runs) {
    names.push_back(run_name(run.folder));
    paths.push_back(std::filesystem::path(run.folder + "/").lexically_normal().parent_path());
  }
  const bool unique = std::set<std::string>(names.begin(), names.end()).size() == names.size() &&
                      std::ranges::find(names, "") == names.end();
  return unique ? names : paths;
}

std::string compare_page(std::span<const ReportData> runs) {
  ORTHANT_CHECK(runs.size() >= 2 && runs.size() <= kMostRuns, runs.size());
  const Names names = run_names(runs);
  const auto curve = [&](const Curve& one) { return curve_card(one, runs, names); };
  std::string out = compare_header(runs, names) + loss_card(runs, names, false) + differences_card(runs, names);
  out += figures_card(runs, names) + keys_card(runs, names) + loss_card(runs, names, true);
  out += pair_of(curve({"validation", "Validation loss", "On held-out documents.", "loss, nats per token",
                        validation_points, [](double) { return Unit(); }, false}) +
                 curve(step_curve("norm", "Gradient norm", "Before clipping.", "global norm",
                                  [](const StepMetrics& m) { return m.grad_norm; })));
  out += pair_of(
      curve(step_curve(
          "rate", "Learning rate", "Of each step.", "rate", [](const StepMetrics& m) { return m.lr; }, power_unit)) +
      curve(step_curve(
          "throughput", "Throughput", "All ranks together.", "tokens per second",
          [](const StepMetrics& m) { return m.tokens_per_second; }, count_unit)));
  out += pair_of(curve(step_curve(
                     "memory", "Memory", "Peak of the rank that needs most, since the run's start.", "of tensors",
                     [](const StepMetrics& m) { return static_cast<double>(m.peak_memory_bytes); }, byte_unit)) +
                 curve(step_curve(
                     "time", "Step time", "On rank 0.", "per step", [](const StepMetrics& m) { return m.step_seconds; },
                     second_unit)));
  return html_page(fmt::format("{} runs: Orthant comparison", runs.size()), out);
}

}  // namespace orthant
