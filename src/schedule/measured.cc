// Builds Timelines from measured times, and reads them back from Chrome traces.
#include "schedule/measured.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "schedule/bubbles.h"
#include "schedule/trace.h"

namespace orthant {

Timeline measured_timeline(const Schedule& schedule, const std::vector<std::vector<std::pair<double, double>>>& rows) {
  ORTHANT_CHECK(rows.size() == schedule.rows.size(), rows.size(), schedule.rows.size());
  double first_s = std::numeric_limits<double>::infinity();
  for (const auto& row : rows)
    for (const auto& [start_s, end_s] : row) first_s = std::min(first_s, start_s);
  Timeline timeline;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const auto& actions = schedule.rows[rank];
    ORTHANT_CHECK(rows[rank].size() == actions.size(), rank, rows[rank].size(), actions.size());
    double busy_s = 0;
    for (size_t i = 0; i < actions.size(); ++i) {
      const auto [start_s, end_s] = rows[rank][i];
      const Stream stream = facts(actions[i].kind).stream;
      timeline.spans.push_back({static_cast<int>(rank), stream, actions[i], start_s - first_s, end_s - first_s});
      timeline.makespan = std::max(timeline.makespan, end_s - first_s);
      if (stream == Stream::compute) busy_s += end_s - start_s;
    }
    timeline.busy.push_back(busy_s);
  }
  timeline.bubble = idle_fraction(timeline);
  const std::vector<Kept> one(static_cast<size_t>(stage_count(schedule)));
  for (const double live : peak_kept(schedule, one)) timeline.peak_in_flight.push_back(static_cast<int>(live));
  return timeline;
}

Durations own_durations(const Timeline& timeline) {
  Durations durations;
  for (const Span& span : timeline.spans) durations.own[span.action] = span.end - span.start;
  return durations;
}

Durations mean_durations(const Timeline& timeline) {
  Durations means;
  std::vector<std::array<int, kActionKinds>> counts;
  for (const Span& span : timeline.spans) {
    const auto stage = static_cast<size_t>(span.action.stage), kind = static_cast<size_t>(span.action.kind);
    if (stage >= counts.size()) counts.resize(stage + 1), means.stage_times.resize(stage + 1);
    means.stage_times[stage][kind] += span.end - span.start;
    ++counts[stage][kind];
  }
  for (size_t stage = 0; stage < counts.size(); ++stage)
    for (size_t kind = 0; kind < kActionKinds; ++kind)
      means.stage_times[stage][kind] /= std::max(1, counts[stage][kind]);
  return means;
}

std::string to_json(const MeasuredStep& measured) {
  return chrome_trace(measured.timeline,
                      {{"step", static_cast<double>(measured.step)},
                       {"clock_error_s", measured.clock_error_s},
                       {"simulated_s", measured.simulated_s}});
}

MeasuredStep parse_measured_step(std::string_view text, const std::string& source) {
  constexpr size_t kMostRanks = 1 << 16;
  MeasuredStep measured;
  std::vector<std::vector<std::pair<double, double>>> times;
  const auto trace = parse_json(text, source);
  try {
    const auto& notes = trace.at("otherData");
    measured.step = notes.at("step").get<int64_t>();
    measured.clock_error_s = notes.at("clock_error_s").get<double>();
    measured.simulated_s = notes.at("simulated_s").get<double>();
    for (const auto& event : trace.at("traceEvents")) {
      const auto name = event.at("name").get<std::string>();
      if (event.at("ph") != "X" || !name.starts_with(kTracePrefix)) continue;
      const auto rank = event.at("pid").get<size_t>();
      if (rank >= kMostRanks) throw DataError(fmt::format("the rank {} is too large", rank));
      if (rank >= times.size()) times.resize(rank + 1), measured.schedule.rows.resize(rank + 1);
      const double start_s = 1e-6 * event.at("ts").get<double>();
      times[rank].emplace_back(start_s, start_s + 1e-6 * event.at("dur").get<double>());
      measured.schedule.rows[rank].push_back(parse_action(name.substr(kTracePrefix.size())));
    }
    // The round trip through CSV sets the owners of the stages and checks the number of stages and microbatches.
    measured.schedule = parse_csv(to_csv(measured.schedule));
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: {}", source, error.what()));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", source, error.what()));
  }
  measured.timeline = measured_timeline(measured.schedule, times);
  return measured;
}

}  // namespace orthant
