// Searches the layouts of a run for the shortest steps that fit the devices: over tensor, pipeline, sequence and data
// parallelism, stages of ZeRO, recomputation, and then schedules, vocabulary placements and microbatch sizes. Keys that
// the run file or the command line sets stay as they are.
//
//   1. The meshes of tensor x pipeline x sequence x data ranks, each with several sizes of microbatches, are sorted by
//      a lower bound of the step time: the passes of the busiest rank.
//   2. Each is planned with three schedules, with all stages of ZeRO, without copies of the sharded states and with as
//      many as leave room for activations, and with the least recomputation that fits. A layout is left out if a bound
//      shows that it does not fit, or that its step is not below the tenth best and not below the best of its kind.
//      Part 2 finds the best layout of this space, and the best of each kind within kNearBest times its step.
//   3. The best pipelines are planned again with data as the outer axis, with the other schedules, and with placements
//      of layers and of the vocabulary; the best rings with tokens in stripes. Then the best layouts, and the best one
//      of each kind, are planned again with other numbers of copies of the states that ZeRO shards, and with
//      recomputation of other operations. Schedules with post-validation are not tried.
//
// If nothing fits, tensor axes that are longer than a host are tried, too. If no layout is legal in which all ranks
// have work, layouts with idle ranks are searched.
//
// Nothing proves that the third part finds the best; docs/plan-errors.md states how true the seconds are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "advice/explain.h"
#include "plan/plan.h"

namespace orthant {

/// Layouts that the search lists before the best of each kind, and that its winner is among.
inline constexpr size_t kShown = 10;

/// The search finds the best layout of each kind whose step is less than this times the best of all.
inline constexpr double kNearBest = 1.25;

/// The keys that the search sets.
const std::vector<std::string>& searched_keys();

/// A layout that the search has planned.
struct FoundLayout {
  Config config;
  std::string name;  // "column 8, data 8, ZeRO 1; recomputes norms + swiglu"
  std::string kind;  // the axes with several ranks: "tensor + data"
  StepTime time;
  double mfu = 0;            // counts all pairs of tokens in attention
  double mfu_causal = 0;     // counts the pairs of tokens that attention sees
  int64_t memory_bytes = 0;  // of tensors, of the rank that needs most
  bool fits_device = false;  // run.memory_gib_per_rank may be less
};

struct SearchResult {
  std::vector<FoundLayout> fitting;     // in ascending order of step time
  std::optional<FoundLayout> smallest;  // if nothing fits: the layout that needs least memory
  int64_t planned = 0, refused = 0;     // numbers of layouts
  int64_t meshes = 0, left_out = 0;     // numbers of meshes with their microbatch sizes, and of those a bound excludes
};

/// Receives the numbers of meshes that a search is done with, and of all meshes. If nothing fits, it then receives the
/// number of bounds that the search of the smallest layout has computed, and that number with the open layouts.
using SearchProgress = std::function<void(int64_t done, int64_t total)>;

/// Searches the layouts of the run on facts.ranks ranks. Requires facts.hardware. Calls `progress`, if it is given,
/// after each group of meshes.
SearchResult search_layouts(const Config& config, const RunFacts& facts, const SearchProgress& progress = {});

/// Returns a text that is the same for layouts with equal step time, memory and settings, zero_reshard left out. With
/// one microbatch, layouts that differ in zero_reshard alone may be equal in all else, and explain_search() shows one.
std::string row_of(const FoundLayout& found);

/// Returns the least memory, its layout and what to change, for a search in which nothing fits.
std::string smallest_text(const FoundLayout& smallest, const Hardware& hardware);

/// Returns the ten best layouts, and the best of every other kind that is near the best, as a table; or the smallest
/// memory that works.
std::string explain_search(const SearchResult& result, const Hardware& hardware);

/// Returns the best layout's plan with these sections as JSON, or the plan that needs least memory if none fits, with
/// `search[]`: the layouts that fit. docs/plan-json.md documents the fields.
std::string search_json(const SearchResult& result, const RunFacts& facts, const Sections& sections);

}  // namespace orthant
