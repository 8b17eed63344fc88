// Reads a run folder into the data of a report. Only metrics.jsonl is required.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "report/metrics.h"
#include "schedule/measured.h"

namespace orthant {

/// Facts about the run, in the order of the page, such as "Model" -> "llama, 6 layers, ...".
using Facts = std::vector<std::pair<std::string, std::string>>;

struct MemoryPart {
  std::string name;
  double bytes = 0;
};

/// The planned time of a step, of a run whose hardware profile is known.
struct PlannedTime {
  double step_seconds = 0, exposed_seconds = 0;       // exposed: waits for messages, without the bubble
  std::vector<std::pair<std::string, double>> parts;  // of the step of the busiest pipeline rank, in seconds
};

struct ReportData {
  std::string folder;
  std::string description;
  Metrics metrics;
  Facts facts;                                          // model, data, mesh, and others, if known
  std::string started;                                  // such as "2026-01-31 12:00 UTC"; empty if unknown
  // Bytes sent and received per step by rank 0, from plan.json; plans of earlier versions have no received bytes.
  std::optional<int64_t> expected_communication_bytes, expected_received_bytes;
  std::vector<MemoryPart> expected_memory;  // the rank with the largest planned memory; empty if unknown
  std::optional<Config> config;             // the effective run file, if it can be read
  std::string config_text, schedule_svg, sample_text;  // empty if the file is missing
  bool has_pipeline = true;                            // false if plan.json has one pipeline rank
  /// Planned mean durations of computations, by stage and the text of their kind: in seconds if planned_time is known,
  /// else in a unit of the plan.
  std::map<std::pair<size_t, std::string>, double> planned_passes;
  std::optional<PlannedTime> planned_time;
  std::optional<MeasuredStep> measured;                // the last measured step of a pipeline
  std::vector<std::string> problems;                   // errors in optional files, one sentence each
};

/// Reads metrics.jsonl (required), config.toml, plan.json, schedule.svg, timeline.json, sample.txt and the name of the
/// first event file in tb/. plan.json has the form that `orthant plan --json` prints; used are mesh, ranks,
/// parameters.count, timeline.passes, step_seconds and its parts, and classes[] with communication_bytes and
/// memory_bytes, an object of bytes by part. Throws DataError for metrics.jsonl only.
ReportData read_run_folder(const std::string& folder);

}  // namespace orthant
