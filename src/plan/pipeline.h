// The pipeline of a run: its schedule, and which layers each stage holds.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace orthant {

/// The run file's schedule over so many pipeline ranks, computations and messages, before anything is reduced. A file
/// is read and judged. ConfigError: a schedule that these ranks, layers or microbatches cannot carry out.
Schedule schedule_of(const Config& config, int ranks, int microbatches, int64_t layers);

/// Layers in the stages' order: as the run file says, or as equal as can be, the first stages one more. ConfigError
/// where the run file's do not add up.
std::vector<Stage> stages_of(const Config& config, const std::vector<int>& stage_owner, int64_t layers);

}  // namespace orthant
