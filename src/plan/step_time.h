// Seconds of a training step on given hardware: durations of all Actions, the timeline that follows from them, and the
// work after the row. The cost does not grow with the number of ranks: one rank of each pipeline rank stands for all.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plan/pass_time.h"
#include "plan/placement.h"
#include "schedule/simulate.h"

namespace orthant {

/// The step of the busiest pipeline rank. The parts add up to `seconds`.
struct StepTime {
  double seconds = 0;
  TimeParts passes;       // computation, and messages of passes that nothing hides
  double idle = 0;        // between passes, and at both ends of the row: the bubble, and waits for weights
  double sharing = 0;     // more time until the last pass ends, because ranks of the host share its cores
  double reductions = 0;  // gradient reductions after the last pass, which nothing hides
  double update = 0;      // gradient norm and optimizer
  double gathers = 0;     // updated weights (ZeRO 1 and 2), and the sum of the step's statistics

  /// Seconds in which the rank waits for messages, the bubble not included.
  double exposed_communication() const;
  /// The parts that add up to `seconds`, with names for people: "messages over column".
  std::vector<std::pair<std::string, double>> named_parts() const;
};

/// Durations of all Actions of the plan's schedule. Requires facts.hardware.
Durations action_seconds(const ParameterPlacement& plan, const ParameterShards& held);

/// Returns the time of a step whose row has this timeline, in seconds. With post-validation, the row contains the
/// update, and row_interval is the time from one row to the next, in which `idle` includes waits for reductions.
/// Requires facts.hardware.
StepTime count_step_time(const ParameterPlacement& plan, const ParameterShards& held, const Timeline& timeline,
                         double row_interval);

/// FLOPs of the model in a step, divided by what all devices could do at their peak in the step's time ("model FLOPs
/// utilization"). Attention counts the pairs of the mask, or all pairs if `all_pairs`: both conventions are in use.
double model_flops_utilization(const Sharding& sharding, double step_seconds, bool all_pairs);

}  // namespace orthant
