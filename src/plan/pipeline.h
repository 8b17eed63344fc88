// The pipeline of a run: its schedule, and which layers each stage holds.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace orthant {

/// The run file's schedule over so many pipeline ranks, computations and messages, before anything is reduced. A file
/// is read and judged. ConfigError: a schedule that these ranks, layers or microbatches cannot carry out.
Schedule schedule_of(const Config& config, int ranks, int microbatches, int64_t layers);

/// Layers in the stages' order: as equal as can be, the first stages one more; as the run file says; or where it says
/// -1, so that the costliest stage costs least. ConfigError where the run file's do not add up.
std::vector<Stage> stages_of(const Config& config, const std::vector<int>& stage_owner, const Architecture& a);

/// FLOPs of a token in a stage's F, I and W; B is both of those.
struct StageFlops {
  double forward = 0, input = 0, weights = 0;
  double sum() const { return forward + input + weights; }
};
std::vector<StageFlops> flops_of(const Config& config, const Architecture& a, const std::vector<Stage>& stages);

/// What stages' passes take, as their FLOPs, in units of a pipeline rank's mean forward of a microbatch.
Durations durations_of(const std::vector<StageFlops>& flops, int ranks);

}  // namespace orthant
