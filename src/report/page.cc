#include "report/page.h"

#include "report/chart.h"
#include "report/parts.h"
#include "base/text.h"
#include "report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>

namespace orthant {
namespace {

// Peak memory since the last start. Each start measures its own peak, and only the last has the expected plan.
int64_t peak_memory(const std::vector<StepMetrics>& steps) {
  return steps.empty() ? 0 : steps.back().peak_memory_bytes;
}

double expected_total(const ReportData& data) {
  double total = 0;
  for (const auto& part : data.expected_memory) total += part.bytes;
  return total;
}

std::string tile(std::string_view label, const std::string& value, const std::string& below) {
  return fmt::format(
      "<div class=\"tile\"><span class=\"label\">{}</span><span class=\"value\">{}</span>"
      "<span class=\"below\">{}</span></div>\n",
      label, value, below);
}

std::string tiles(const ReportData& data) {
  const auto& steps = data.metrics.steps;
  if (steps.empty()) return "";
  const TimeSplit time = time_split(steps);
  const double tokens_per_second = median(known_values(steps, [](const auto& m) { return m.tokens_per_second; }));
  const double step_s = median(known_values(steps, [](const auto& m) { return m.step_seconds; }));
  std::string out = "<div class=\"tiles\">\n";
  out += tile("Training loss", show(steps.back().loss, 3),
              fmt::format("{} at step {}", show(steps.front().loss, 3), steps.front().step));
  if (const auto* best = best_validation(data.metrics)) {
    out += tile("Best validation", show(best->validation_loss, 3),
                std::isnan(best->bits_per_byte)
                    ? fmt::format("step {}", best->step)
                    : fmt::format("{} bits/byte, step {}", show(best->bits_per_byte, 3), best->step));
  }
  out +=
      tile("Speed", std::isfinite(tokens_per_second) ? format_count(tokens_per_second) + " <small>tok/s</small>" : "-",
           format_seconds(step_s) + " a step, medians");
  out += tile("Exposed communication", time.total > 0 ? show(100 * time.communication / time.total, 1) + "%" : "-",
              "of rank 0's step time");
  const double peak = static_cast<double>(peak_memory(steps)), expected = expected_total(data);
  out += tile("Peak memory", format_bytes(peak), expected > 0 ? "expected " + format_bytes(expected) : "largest rank");
  out += tile("Trained on", format_count(static_cast<double>(steps.back().tokens)) + " <small>tokens</small>",
              fmt::format("{} in {}", counted(static_cast<int64_t>(steps.size()), "step"), format_seconds(time.total)));
  return out + "</div>\n";
}

std::string header(const ReportData& data) {
  const std::string name = run_name(data.folder);
  std::string out = "<header>\n<p class=\"brand\">Orthant, a training run</p>\n";
  out += fmt::format("<h1>{}</h1>\n", escape(name.empty() ? data.folder : name));
  if (!data.description.empty()) out += fmt::format("<p class=\"lead\">{}</p>\n", escape(data.description));
  out += "<dl>\n";
  const auto fact = [&](std::string_view label, const std::string& value) {
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", label, escape(value));
  };
  for (const auto& [label, value] : data.facts) fact(label, value);
  if (!data.started.empty()) fact("Started", data.started);
  fact("Folder", data.folder);
  if (!data.config_text.empty()) {
    const auto folder = std::filesystem::path(data.folder + "/").lexically_normal();
    const std::string again = fmt::format("build/orthant train {} --job.dump_folder {}-again",
                                          (folder / "config.toml").string(), folder.parent_path().string());
    out += fmt::format("<div class=\"long\"><dt>Run it again</dt><dd><code>{}</code></dd></div>\n", escape(again));
  }
  out += "</dl>\n</header>\n";
  for (const auto& problem : data.problems) out += missing("Not shown: " + escape(problem));
  return out;
}

std::string memory_section(const ReportData& data) {
  constexpr const char* kColors[] = {"blue", "green", "purple", "orange", "gray"};
  const double peak = static_cast<double>(peak_memory(data.metrics.steps)), expected = expected_total(data);
  const double scale = std::max(peak, expected);
  std::string body;
  if (data.expected_memory.empty()) {
    body += missing("The expected memory is unknown: the folder has no plan.json with bytes by part.");
  } else {
    std::vector<Part> parts;
    for (const auto& part : data.expected_memory) {
      parts.push_back({part.name, kColors[parts.size() % std::size(kColors)], format_bytes(part.bytes), part.bytes});
    }
    body += fmt::format("<h3>Expected <b>{}</b></h3>\n", format_bytes(expected)) + strip(parts, scale);
  }
  body += fmt::format("<h3>Measured <b>{}</b>{}</h3>\n", peak > 0 ? format_bytes(peak) : "nothing",
                      peak > 0 && expected > 0 ? fmt::format(", {:+.1f}%", 100 * (peak - expected) / expected) : "");
  if (peak > 0) body += strip({{"peak", "gray", format_bytes(peak), peak}}, scale);
  return card("memory", "Memory", "Peak of the rank that needs most, since the last start of the run.", body);
}

std::string validation_section(const Metrics& metrics) {
  if (metrics.validations.empty()) {
    return card("validation", "Validation", "On held-out documents.", missing("No validation was run."));
  }
  std::string table =
      "<div class=\"wide\"><table>\n<tr><th>step</th><th>loss, nats per token</th><th>bits per byte</th>";
  const std::vector<SetMetrics>& sets = metrics.validations.back().sets;
  for (const SetMetrics& set : sets) table += fmt::format("<th>loss of {}</th>", escape(set.name));
  table += "</tr>\n";
  const auto* best = best_validation(metrics);
  for (const auto& one : metrics.validations) {
    table += fmt::format("<tr{}><td>{}</td><td>{}</td><td>{}</td>", &one == best ? " class=\"best\"" : "",
                         grouped(one.step), show(one.validation_loss, 4), show(one.bits_per_byte, 4));
    for (const SetMetrics& set : sets) {
      const auto found = std::ranges::find(one.sets, set.name, &SetMetrics::name);  // a resumed run may have other sets
      table += fmt::format("<td>{}</td>", found == one.sets.end() ? "-" : show(found->validation_loss, 4));
    }
    table += "</tr>\n";
  }
  return card("validation", "Validation", "On held-out documents; the best in bold.", table + "</table></div>\n");
}

std::string sample_section(const std::string& text) {
  return card(
      "sample", "Sample", "Held-out text and the output of the trained model.",
      text.empty()
          ? missing(
                "The folder has no sample.txt: train writes it after the last step, unless metrics.sample_tokens = 0.")
          : "<pre class=\"sample\">" + escape(text) + "</pre>\n");
}

std::string config_section(const std::string& text) {
  return card("config", "Configuration", "The effective settings, with the source of each value.",
              text.empty() ? missing("The folder has no config.toml.")
                           : "<details><summary>config.toml</summary><pre>" + escape(text) + "</pre></details>\n");
}

}  // namespace

std::string report_page(const ReportData& data) {
  const Metrics& metrics = data.metrics;
  std::string out = header(data) + tiles(data);
  if (metrics.steps.empty()) {
    out += missing("metrics.jsonl holds no step: the run ended before its first one.");
  } else {
    out += loss_section(metrics) + sample_section(data.sample_text) +
           pair_of(rate_section(metrics) + norm_section(metrics));
    out += throughput_section(metrics) + time_section(metrics, data.planned_time) +
           pair_of(communication_sections(metrics, data.expected_communication_bytes, data.expected_received_bytes));
    out += memory_section(data);
  }
  out += schedule_section(data) + validation_section(metrics) + config_section(data.config_text);
  return html_page(escape(run_name(data.folder)) + ": Orthant run", out);
}

}  // namespace orthant
