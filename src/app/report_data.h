// What a report is made from: a run folder, read once. Only metrics.jsonl must be there.
#pragma once

#include "runtime/metrics.h"
#include "schedule/measured.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

/// Facts about the run, in the order of the page: "model" -> "llama, 6 layers, ...".
using Facts = std::vector<std::pair<std::string, std::string>>;

struct MemoryPart {
  std::string name;
  double bytes = 0;
};

struct ReportData {
  std::string folder;
  std::string description;
  Metrics metrics;
  Facts facts;                                          // model, data, mesh, ...: those that are known
  std::string started;                                  // "2026-01-31 12:00 UTC"; empty when not known
  std::optional<int64_t> expected_communication_bytes;  // sent in a step by rank 0, says plan.json
  std::vector<MemoryPart> expected_memory;  // of the rank that plan.json expects most of; empty when not known
  std::string config_text, schedule_svg, sample_text;  // empty: the file is not there
  bool has_pipeline = true;                            // unless plan.json says that it is one rank
  std::optional<MeasuredStep> measured;                // the last step of a pipeline
  std::vector<std::string> problems;                   // of the optional files, a sentence each
};

/// Reads metrics.jsonl (needed), config.toml, plan.json, schedule.svg, timeline.json, sample.txt and the name of the
/// first event file under tb/. plan.json is what `orthant plan --json` prints: mesh, ranks, parameters.count,
/// per_rank[] with communication_bytes and memory_bytes, an object of bytes by part. Throws DataError for metrics.jsonl
/// alone.
ReportData read_run_folder(const std::string& folder);

}  // namespace orthant
