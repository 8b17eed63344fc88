// Compares the plan with plans of the same run that differ in dtype, recomputation, microbatches, ZeRO, offloading, the
// mesh, the placement of the vocabulary or the number of ranks.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "advice/compared_plan.h"
#include "plan/plan.h"

namespace orthant {

/// The same run with other settings.
struct Alternative : ComparedPlan {
  std::string change;     // settings as on a command line, "training.dtype=bfloat16", or a layout's name
  bool offloads = false;  // which is only planned
  bool on_other_ranks = false;  // changes the number of ranks
  std::string remark;     // its main cost or effect; may be empty
};

/// Returns the costs of the plan, with this text as its change.
Alternative alternative(std::string change, const Plan& plan);

/// Returns a table of legal alternatives to the plan, with step times if the hardware is known, and "does not fit" for
/// those that do not. `heading` is the title of their column.
std::string alternatives_table(const Plan& plan, const std::string& heading,
                               const std::vector<Alternative>& alternatives);

/// Returns the sequences of the largest microbatch of any rank.
int64_t largest_microbatch(const Plan& plan);

/// Names the keys in which two run files differ, with the values of the second, as the words of a command line.
std::string changed_settings(const Config& before, const Config& after);

/// Plans the run with these settings, those of a run file. Returns nothing if planning refuses them, or if the step
/// takes limit_s seconds or more.
std::optional<Alternative> plan_change(const Plan& plan, const Config& config, double limit_s = INFINITY);

/// Returns the alternatives: the plan with recomputation of no block or of all, half the largest microbatch, bfloat16,
/// the optimizer's state sharded or not, zero_reshard = microbatch, offloading, a sharded vocabulary, half of the data
/// ranks as tensor or pipeline ranks instead, or 1, 2, 4 or 8 ranks by another number of data ranks, each with
/// sequences. Alternatives that planning refuses, or whose costs equal those of the plan, are left out.
std::vector<Alternative> alternatives_to(const Plan& plan);

/// Returns a change of several settings that fits. It takes the mesh of the same ranks that makes fewest data ranks
/// tensor or pipeline ranks, and on it the fastest stage of ZeRO with or without recomputation of all blocks, or
/// without hardware the first one. A pipeline also shards the vocabulary. If nothing fits, it returns nothing, and sets
/// `least`, if given, to the change that needs least memory.
std::optional<Alternative> combined_change(const Plan& plan, std::optional<Alternative>* least = nullptr);

}  // namespace orthant
