// The pipeline of a run: its schedule, and which layers each stage holds.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// The run file's schedule over so many pipeline ranks and shares of the batch, computations and messages, before
/// anything is reduced; for with_vocabulary() with as many forwards ahead as that wants. A file is read and judged.
/// ConfigError: a schedule that these ranks, layers or microbatches cannot carry out.
Schedule schedule_of(const Config& config, int ranks, int shares, int64_t layers);

/// The run file's schedule for people, of a file its name, and where it places the vocabulary:
/// "zb_v, vocabulary algorithm_2".
std::string schedule_text(const Config& config);

/// Layers in the stages' order: as equal as can be, the first stages one more; as the run file says; or where it says
/// -1, so that the costliest rank costs least. ConfigError where the run file's do not add up.
std::vector<Stage> stages_of(const Config& config, const std::vector<int>& stage_owner, const Architecture& a);

/// FLOPs of a token in a stage's F, I and W; B is both of those.
struct StageFlops {
  double forward = 0, input = 0, weights = 0;
  double sum() const { return forward + input + weights; }
};
std::vector<StageFlops> flops_of(const Config& config, const Architecture& a, const std::vector<Stage>& stages);

/// FLOPs of a token in one layer's forward, in products with weights and in attention, and in the head's logits.
struct LayerFlops {
  LayerFlops(const Architecture& a, int64_t seq_len);
  double weights = 0, attention = 0, head = 0;
};

/// What the passes of the plan's stages, and of its vocabulary, take, as their FLOPs, in units of a pipeline rank's
/// mean forward of a microbatch, in which the gradients of the head are made.
Durations durations_of(const Plan& plan);

/// The plan's schedule, or where that is faster and no rank holds more, what its generator makes of the stages' mean
/// durations. Generators that place W by durations have run with equal ones: stages were not cut yet.
Schedule suited(const Plan& plan);

}  // namespace orthant
