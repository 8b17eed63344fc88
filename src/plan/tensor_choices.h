// The tensor meshes of as many ranks, beside the plan's own: what a layer sends on each, and whether it fits.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallel/tensor/words_plan.h"
#include "plan/plan.h"

namespace orthant {

/// The run file that asks for this mesh.
Config with_tensor_plan(Config config, const TensorPlan& tensor);

/// Everything that is arranged otherwise: words of a layer that a rank receives a step (averaged over ranks), bytes
/// that the busiest rank sends a step for everything, memory of the largest, or why it cannot be. `plan_of` plans a
/// config. Empty where the mesh has one rank.
std::vector<TensorChoice> tensor_choices(const Plan& plan, const std::function<Plan(const Config&)>& plan_of);

/// The run file with tensor_parallel_kind = "auto" resolved: the mesh of so many ranks that cheapest() takes within
/// run.memory_gib_per_rank. ConfigError where none can be, or none fits.
Config with_cheapest_tensor_plan(const Config& config, int ranks, const std::function<Plan(const Config&)>& plan_of);

/// Of those that can be and fit run.memory_gib_per_rank, the one that sends fewest bytes; of equals, the one that holds
/// least. Null where none does.
const TensorChoice* cheapest(const std::vector<TensorChoice>& choices, const Config& config);

/// Words that some rank of a mesh without depth receives at least for a layer's products forward: see product_bound().
double tensor_words_bound(const Plan& plan);

/// The plan's mesh for people; where tensor_parallel_kind was "auto", with the kind that this took.
std::string mesh_and_kind(const Plan& plan);

/// A table of them for people, the lower bound, and what follows from it.
std::string explain_tensor_choices(const Plan& plan);

}  // namespace orthant
