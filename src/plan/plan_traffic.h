// Counts the bytes that each rank sends in a step.
#pragma once

#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// Names of the communication entries for messages between stages.
inline constexpr std::string_view kStageOutputs = "outputs of stages", kStageGradients = "gradients of stages' inputs";
/// Beginnings of the names of the entries for gradient reductions, for gathers of sharded weights, and for sums of
/// sharded gradients over their replicas.
inline constexpr std::string_view kGradientBuckets = "gradients, bucket", kWeightBuckets = "weights, bucket",
                                  kReplicaBuckets = "gradients over replicas, bucket";

/// Returns the messages of all ranks: of blocks, embedding and loss, between stages, and for the reduction of
/// gradients, their norm and the step signals.
std::vector<CommunicationEntry> count_communication(const ParameterPlacement& plan, const ParameterShards& held);

}  // namespace orthant
