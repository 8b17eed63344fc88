// The section of a report that shows the schedule, planned and measured.
#include "report/chart.h"
#include "report/page.h"
#include "report/parts.h"
#include "schedule/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

namespace orthant {
namespace {

// Embeds a drawing as an image, so that its styles, names and scripts cannot affect the page.
std::string image(const std::string& svg, std::string_view what) {
  std::string encoded;
  for (const char c : svg) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) ||
                       std::string_view("-_.~/ :;,=()").find(c) != std::string_view::npos;
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return fmt::format("<div class=\"wide\"><img alt=\"{}\" src=\"data:image/svg+xml,{}\"></div>\n", what, encoded);
}

// Removes messages from the timeline. The cost of a message is visible as idle time of the rank that waits for it; the
// start of the message shows nothing.
Timeline without_messages(Timeline timeline) {
  std::erase_if(timeline.spans, [](const Span& span) { return is_message(span.action); });
  return timeline;
}

using PlannedPasses = std::map<std::pair<size_t, std::string>, double>;

// Returns the factor from the unit of the plan to milliseconds, so that one of each planned pass takes as long as one
// of each measured pass. Returns 0 without planned passes.
double planned_unit_ms(const Durations& measured, const PlannedPasses& planned) {
  double of_measured = 0, of_planned = 0;
  for (const auto& [pass, duration] : planned) {
    const auto& [stage, text] = pass;
    const auto kind = std::ranges::find(action_kinds(), text, &KindFacts::text);
    if (stage >= measured.stage_times.size() || kind == action_kinds().end()) return 0;
    of_measured += 1e3 * measured.stage_times[stage][static_cast<size_t>(kind->kind)];
    of_planned += duration;
  }
  return of_planned > 0 ? of_measured / of_planned : 0;
}

// Mean duration of Actions in milliseconds, by stage and kind, measured and as planned.
std::string durations_table(const MeasuredStep& measured, const PlannedPasses& planned, bool in_seconds) {
  const Durations means = mean_durations(measured.timeline);
  std::vector<const KindFacts*> shown;
  for (const KindFacts& kind : action_kinds()) {
    for (const auto& stage : means.stage_times) {
      if (kind.stream != Stream::compute || stage[static_cast<size_t>(kind.kind)] == 0) continue;
      shown.push_back(&kind);
      break;
    }
  }
  const double unit_ms = in_seconds ? 1e3 : planned_unit_ms(means, planned);
  std::string out = "<div class=\"wide\"><table>\n<tr><th>stage</th><th>rank</th>";
  for (const KindFacts* kind : shown) out += fmt::format("<th>{}, ms</th>", kind->meaning);
  out += "</tr>\n";
  for (size_t stage = 0; stage < means.stage_times.size(); ++stage) {
    out += fmt::format("<tr><td>{}</td><td>{}</td>", stage, measured.schedule.stage_owner[stage]);
    for (const KindFacts* kind : shown) {
      const auto pass = planned.find({stage, std::string(kind->text)});
      out += fmt::format("<td>{}{}</td>", show(1e3 * means.stage_times[stage][static_cast<size_t>(kind->kind)], 3),
                         unit_ms > 0 && pass != planned.end()
                             ? fmt::format(" <small>({})</small>", show(unit_ms * pass->second, 3))
                             : "");
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string measured_part(const MeasuredStep& measured, const ReportData& data) {
  const Timeline& timeline = measured.timeline;
  const bool in_seconds = data.planned_time.has_value();
  std::string out = fmt::format(
      "<h3>Measured: step {} took <b>{} ms</b> from its first Action to its last, bubble <b>{}%</b>; clocks of ranks "
      "agree to {} ms</h3>\n",
      measured.step, show(1e3 * timeline.makespan, 1), show(100 * timeline.bubble, 1),
      show(1e3 * measured.clock_error_s, 3));
  out += image(draw_svg(measured.schedule, without_messages(timeline), fmt::format("Measured, step {}", measured.step)),
               "The measured schedule");
  out += fmt::format(
      "<h3>Simulated with the measured computations: <b>{} ms</b>; measured / simulated <b>{}</b>. The difference is "
      "the cost of messages. Means by stage, and in parentheses as planned{}:</h3>\n",
      show(1e3 * measured.simulated_s, 1), show(timeline.makespan / measured.simulated_s, 3),
      in_seconds ? " for a rank that shares its cores with no other" : ", scaled to the same sum");
  return out + durations_table(measured, data.planned_passes, in_seconds);
}

}  // namespace

std::string schedule_section(const ReportData& data) {
  if (!data.has_pipeline) return "";
  std::string body = data.schedule_svg.empty() ? missing("The folder has no schedule.svg.")
                                               : image(data.schedule_svg, "The planned schedule");
  const char* note = "The Actions of each rank over time, as planned.";
  if (data.measured) {
    note = "The Actions of each rank over time, planned and measured.";
    body += measured_part(*data.measured, data);
  }
  return card("schedule", "Schedule", note, body);
}

}  // namespace orthant
