// Compares the plan with plans that use its ranks for one kind of parallelism: data, ZeRO, sequence, tensor or
// pipeline.
#pragma once

#include <string>
#include <vector>

#include "advice/alternatives.h"

namespace orthant {

/// Returns the layouts of the same ranks, by name: all ranks over data, with stages 0, 1 and 3 of ZeRO; over tensor
/// columns; over the pipeline; and over sequences, in each ulysses x ring, with ring self-attention too. If the plan
/// has sequence ranks, only these are arranged anew. Layouts that planning refuses, or that leave data ranks without
/// sequences, have a refusal. The plan's own layout, and sequence ranks whose shape planning refuses, are left out.
/// Empty for one rank and for Linformer.
std::vector<Alternative> other_layouts(const Plan& plan);

/// Returns them as a table with the plan's own layout, and says which of those that fit is fastest, sends least and
/// holds least.
std::string explain_layouts(const Plan& plan);

}  // namespace orthant
