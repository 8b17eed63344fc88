// Compares all tensor meshes with the plan's number of ranks: bytes sent by each, and whether it fits in memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallel/tensor/volume_plan.h"
#include "plan/plan.h"

namespace orthant {

/// Returns the configuration that asks for this mesh.
Config with_tensor_plan(Config config, const TensorPlan& tensor);

/// Returns all arrangements, the plan's own included. Each has, per step, the elements received for one layer (averaged
/// over ranks) and the total bytes that the busiest rank sends; and the memory of the largest rank. An illegal
/// arrangement has the reason instead. `plan_of` plans a config. Empty if the tensor mesh has one rank.
std::vector<TensorChoice> tensor_choices(const Plan& plan, const std::function<Plan(const Config&)>& plan_of);

/// Resolves tensor_parallel_kind = "auto": returns the configuration with the mesh of `ranks` ranks that cheapest()
/// selects. Throws ConfigError if no mesh is legal, or none fits run.memory_gib_per_rank.
Config with_cheapest_tensor_plan(const Config& config, int ranks, const std::function<Plan(const Config&)>& plan_of);

/// Returns the choice that sends fewest bytes, among those that are legal and fit run.memory_gib_per_rank. Of equals it
/// takes the one that needs least memory. Returns nullptr if there is none.
const TensorChoice* cheapest(const std::vector<TensorChoice>& choices, const Config& config);

/// Lower bound on the elements that some rank must receive for the forward products of a layer, on any mesh without
/// depth; see product_bound().
double received_elements_bound(const Plan& plan);

/// Returns the plan's mesh as text for people. If tensor_parallel_kind was "auto", the text names the selected kind.
std::string mesh_and_kind(const Plan& plan);

/// Returns a table of the choices for people, the lower bound, and how the cheapest mesh compares with the plan's.
std::string explain_tensor_choices(const Plan& plan);

}  // namespace orthant
