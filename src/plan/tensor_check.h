// What a run file may ask of a tensor mesh, and the nearest mesh that can be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "parallel/sequence/plan.h"
#include "parallel/tensor/plan.h"
#include "plan/config.h"

namespace orthant {

/// Each tensor_parallel_kind has keys of its own. Throws ConfigError.
void check_tensor_kind(const Config& config);

/// Why the mesh cannot train this model and batch beside so many data ranks, on sequences cut so; empty if it can.
std::string tensor_misfit(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data);

/// The smallest legal training.global_batch_size that is at least the file's: rows x depth x data must divide it.
int64_t fitting_batch(const Config& config, const TensorPlan& plan, int64_t data);

/// The misfit as a Refusal, with the nearest legal arrangement.
void check_tensor_parallel(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data);

/// Of the meshes of so many ranks beside so many of data, what is legal and nearest to what the file asks for, by the
/// ratios of its extents. data -1: it takes what a mesh leaves of the ranks, so a mesh may be of fewer.
std::optional<TensorPlan> nearest_tensor_plan(const Config& config, const SequencePlan& sequence, int64_t ranks,
                                              int64_t data);

/// How sequences are cut, as far as tensor meshes are concerned, before any ranks are known.
SequencePlan cut_before_ranks(const Config& config);

/// "[2, 2, 1]".
std::string mesh_text(const TensorPlan& plan);

}  // namespace orthant
