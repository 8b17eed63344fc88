// Writes a Plan as text for people: an answer that fits one screen, and more sections on request.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// Parts of a plan's text and JSON that are left out unless they are asked for. Most compare the plan with others, each
/// of which is planned for this.
struct Sections {
  bool memory = false;         // all ranks, stages of ZeRO, recomputation
  bool communication = false;  // messages of a step
  bool schedule = false;       // data shards, the order of passes, other schedules and vocabulary placements
  bool layouts = false;        // layouts, tensor meshes, and the plan with one setting changed

  /// The sections with these names, where "all" names every one. Throws LogicError for another name.
  static Sections named(const std::vector<std::string>& names);
  static Sections all() { return {true, true, true, true}; }
};

/// Returns the answer (step time, fit, bytes sent), the run, and the sections.
std::string explain(const Plan& plan, const Sections& sections);

}  // namespace orthant
