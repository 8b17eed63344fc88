// Checks the tensor mesh that a run file asks for.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"
#include "config/refusal.h"
#include "parallel/sequence/plan.h"
#include "parallel/tensor/plan.h"

namespace orthant {

/// True if the run file gives a tensor mesh as one number of ranks, and not as three extents.
bool is_one_number(const Config& config);

/// Checks that only keys of the chosen tensor_parallel_kind are set, and that they ask for a mesh of this kind. Throws
/// ConfigError.
void check_tensor_kind(const Config& config);

/// Returns why the mesh cannot train this model and batch with `data` data ranks and sequences sharded as in
/// `sequence`; nullopt if it can. The keys of the mesh are not among the keys of the Refusal.
std::optional<Refusal> find_tensor_refusal(const Config& config, const TensorPlan& plan, const SequencePlan& sequence,
                                           int64_t data);

/// Throws the refusal of find_tensor_refusal() with the key of the mesh, unless the mesh is legal.
void check_tensor_parallel(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data);

}  // namespace orthant
