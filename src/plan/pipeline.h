// The second step of planning: the schedule, the layers of each stage, and the costs of the passes.
#pragma once

#include <string>
#include <vector>

#include "plan/sharding.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// A contiguous range of layers on one pipeline rank. The first stage also has the embedding, and the last has the head
/// and the loss, unless the vocabulary is sharded over the pipeline.
struct Stage {
  int owner = 0;  // pipeline rank
  Range layers;
  bool first = false, last = false;
  bool continues = false;  // it and the stage before it are parts of one stage of the run file's schedule
};

/// The layers as stages, and the order in which the pipeline ranks compute and send. If has_gradients_by_unit(), each
/// stage of the run file's schedule is split: the embedding, each block, and the last norm with the head
/// are stages of their own.
struct Pipeline : Sharding {
  std::vector<Stage> stages;
  Schedule passes;            // computations and messages, without reductions

  /// True if the embedding and the head are on different stages of the run file's schedule.
  bool ends_are_apart() const;
  /// Index of the stage that a parameter belongs to.
  int stage_of(const ParameterInfo& parameter) const;
  /// The stages that the rank owns, in ascending order.
  std::vector<Stage> stages_on(int rank) const;
};

/// Makes the run file's schedule, or reads it from a CSV file, and splits the layers over its stages. Throws
/// ConfigError if these ranks, layers or microbatches cannot carry out the schedule, or the stages do not fit the
/// layers.
Pipeline make_pipeline(Sharding sharding);

/// Checks the laws of a named schedule and its stages without making it. Throws ConfigError as make_pipeline() does.
void check_pipeline(const Config& config, const Mesh& mesh);

/// Names the run file's schedule (or schedule file) and its vocabulary parallelism for people, as in
/// "zb_v, vocabulary algorithm_2".
std::string schedule_text(const Config& config);
/// Names what the blocks recompute: "recomputes norms + swiglu" or "recomputes blocks"; empty if nothing.
std::string recomputation_text(const Config& config);

/// FLOPs per token of a stage's F, I and W. B costs the sum of I and W.
struct StageFlops {
  double forward = 0, input = 0, weights = 0;
  double sum() const { return forward + input + weights; }
};
std::vector<StageFlops> count_stage_flops(const Config& config, const Architecture& a,
                                          const std::vector<Stage>& stages);

/// Forward FLOPs per token: of one layer's products with weights, of one layer's attention, of the operations that a
/// layer which recomputes repeats in backward, and of the head's logits.
struct LayerFlops {
  LayerFlops(const Architecture& a, int64_t seq_len, const Recomputation& recompute = {});
  double weights = 0, attention = 0, repeated = 0, head = 0;
};

/// Returns durations of the passes of the stages and vocabulary layers, in proportion to their FLOPs. The unit
/// is a pipeline rank's mean forward of a microbatch, which includes the gradients of the head. Schedules are made from
/// these durations on any hardware, so that a plan has the schedule of the run.
Durations estimate_durations(const Sharding& sharding, const std::vector<Stage>& stages);

}  // namespace orthant
