// Searches the layouts of a run for the shortest steps that fit the devices: over tensor, pipeline, sequence and data
// parallelism, stages of ZeRO, recomputation, and then schedules, vocabulary placements and microbatch sizes. Keys that
// the run file or the command line sets stay as they are.
//
//   1. Every mesh of tensor x pipeline x sequence x data ranks with every stage of ZeRO is planned with the least
//      recomputation that fits. Sequences are sharded only as far as needed: a longer sequence axis adds messages.
//   2. The best of these are planned again with other microbatch sizes, schedules and vocabulary placements.
//
// Nothing proves that the result is the best of all layouts; docs/plan-errors.md states how true its seconds are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// A layout that the search has planned.
struct FoundLayout {
  Config config;
  std::string name;  // "column 8, data 8, ZeRO 1; recomputes norms + swiglu; microbatches of 2"
  std::string axes;  // "column + data": layouts with the same axes are of one kind
  StepTime time;
  double mfu = 0;            // counting all pairs of attention
  int64_t memory_bytes = 0;  // of tensors, of the rank that needs most
};

struct SearchResult {
  std::vector<FoundLayout> fitting;     // in ascending order of step time
  std::optional<FoundLayout> smallest;  // the layout that needs least memory, whether it fits or not
  int64_t planned = 0, refused = 0;     // numbers of layouts
};

/// Searches the layouts of the run on facts.ranks ranks. Requires facts.hardware.
SearchResult search_layouts(const Config& config, const RunFacts& facts);

/// Returns the ten best layouts, and the best of every other kind, as a table; or the smallest memory that works.
std::string explain_search(const SearchResult& result, const Hardware& hardware);

/// Returns the layouts that fit, as a JSON object {"search": [{settings, step_seconds, memory_bytes, mfu}]}.
std::string search_json(const SearchResult& result);

}  // namespace orthant
