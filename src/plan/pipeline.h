// The pipeline of a run: its schedule, the layers of each stage, and the costs of the passes.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// Returns the run file's schedule over `ranks` pipeline ranks, for a batch in `shares` data shards: computations and
/// messages, without reductions. It has the extra warm-up forwards that with_vocabulary() needs. If the key names a CSV
/// file, the schedule is read from it and validated. Throws ConfigError if these ranks, layers or microbatches cannot
/// carry out the schedule.
Schedule schedule_of(const Config& config, int ranks, int shares, int64_t layers);

/// Names the run file's schedule (or schedule file) and its vocabulary parallelism for people, as in
/// "zb_v, vocabulary algorithm_2".
std::string schedule_text(const Config& config);

/// Splits the layers over the stages, in stage order. By default stages are as equal as possible, and the first ones
/// have one layer more. The run file may list the layers of each stage. With -1, or vocabulary_parallel =
/// "redistribution", the split minimizes the cost of the costliest rank. Throws ConfigError if the list does not fit.
std::vector<Stage> stages_of(const Config& config, const std::vector<int>& stage_owner, const Architecture& a);

/// FLOPs per token of a stage's F, I and W. B costs the sum of I and W.
struct StageFlops {
  double forward = 0, input = 0, weights = 0;
  double sum() const { return forward + input + weights; }
};
std::vector<StageFlops> count_stage_flops(const Config& config, const Architecture& a,
                                          const std::vector<Stage>& stages);

/// Forward FLOPs per token: of one layer's products with weights, of one layer's attention, and of the head's logits.
struct LayerFlops {
  LayerFlops(const Architecture& a, int64_t seq_len);
  double weights = 0, attention = 0, head = 0;
};

/// Returns durations of the passes of the plan's stages and vocabulary layers, in proportion to their FLOPs. The unit
/// is a pipeline rank's mean forward of a microbatch, which includes the gradients of the head.
Durations estimate_durations(const Plan& plan);

/// Returns the plan's schedule, or the one that its generator makes from the stages' mean durations if that is faster
/// and no rank holds more. The plan's schedule assumes equal durations, because the layers were not split into stages
/// yet; this matters for generators that place W by durations.
Schedule fit_schedule_to_stages(const Plan& plan);

}  // namespace orthant
