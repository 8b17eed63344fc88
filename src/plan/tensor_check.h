// What a run file may ask of a tensor mesh, and the nearest mesh that can be.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/sequence/plan.h"
#include "parallel/tensor/plan.h"
#include "plan/config.h"

namespace orthant {

/// Each tensor_parallel_kind has keys of its own. Throws ConfigError.
void check_tensor_kind(const Config& config);

/// Why the mesh cannot train this model and batch beside so many data ranks, on sequences cut so; empty if it can.
std::string tensor_misfit(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data);

/// The same as a ConfigError, with the nearest legal arrangement.
void check_tensor_parallel(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data);

/// Of so many ranks the legal [rows, columns, depth] nearest to parallelism.tensor_parallel_mesh, by its ratios to it;
/// empty where there is none.
std::string nearest_tensor_mesh(const Config& config, int64_t ranks, int64_t data);

}  // namespace orthant
