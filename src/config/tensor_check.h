// Checks the tensor mesh that a run file asks for, and finds the nearest legal one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"
#include "parallel/sequence/plan.h"
#include "parallel/tensor/plan.h"

namespace orthant {

/// Checks that only keys of the chosen tensor_parallel_kind are set, and that they ask for a mesh of this kind. Throws
/// ConfigError.
void check_tensor_kind(const Config& config);

/// Returns why the mesh cannot train this model and batch with `data` data ranks and sequences sharded as in
/// `sequence`; empty if it can.
std::string tensor_misfit(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data);

/// Returns the smallest legal training.global_batch_size that is at least the file's: rows x depth x data must divide
/// it.
int64_t nearest_batch_size(const Config& config, const TensorPlan& plan, int64_t data);

/// Throws tensor_misfit(), if any, as a Refusal with the nearest legal arrangement.
void check_tensor_parallel(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data);

/// Returns the legal mesh of `ranks` ranks, with `data` data ranks, that is nearest to the file's mesh by the ratios of
/// their extents. If `data` is -1, data parallelism takes the ranks that a mesh leaves, so the mesh may have fewer than
/// `ranks`. Returns nullopt if no mesh is legal.
std::optional<TensorPlan> nearest_tensor_plan(const Config& config, const SequencePlan& sequence, int64_t ranks,
                                              int64_t data);

/// Returns the sharding of sequences, as far as tensor meshes depend on it, before the number of ranks is known.
SequencePlan cut_before_ranks(const Config& config);

/// Returns rows, columns and depth as the run file writes them: "[2, 2, 1]".
std::string mesh_text(const TensorPlan& plan);

}  // namespace orthant
