// Compares all tensor meshes with the plan's number of ranks: bytes sent by each, and whether it fits in memory.
#pragma once

#include <string>
#include <vector>

#include "advice/compared_plan.h"
#include "parallel/tensor/volume_plan.h"
#include "plan/plan.h"

namespace orthant {

/// One arrangement of the tensor mesh's ranks, and its costs.
struct TensorChoice : ComparedPlan {
  std::string name;     // "[2, 2, 1]", "1d, 4 columns, sequence"
  TensorPlan tensor;
  TensorVolume received_elements;  // for one layer per step
};

/// Returns the configuration that asks for this mesh.
Config with_tensor_plan(Config config, const TensorPlan& tensor);

/// Returns all arrangements, the plan's own included. Each has, per step, the elements received for one layer (averaged
/// over ranks) and the total bytes that the busiest rank sends; and the memory of the largest rank. An illegal
/// arrangement has the reason instead. Empty if the tensor mesh has one rank.
std::vector<TensorChoice> tensor_choices(const Plan& plan);

/// Resolves tensor_parallel_kind = "auto": returns the configuration with the mesh that recommended() selects, or if
/// none fits the one that needs least memory. Returns other configurations as they are. Throws ConfigError if no mesh
/// is legal.
Config with_chosen_tensor_plan(const Config& config, const RunFacts& facts);

/// Checks the laws of a plan, as check_plan() does. With tensor_parallel_kind = "auto", one of the meshes must be
/// legal. Throws ConfigError.
void check_legal_plan(const Config& config, const RunFacts& facts);

/// Returns the choice with the shortest step, or without hardware the one that sends fewest bytes, among those that are
/// legal and fit. Of equals it takes the one that needs least memory. Returns nullptr if there is none.
const TensorChoice* recommended(const std::vector<TensorChoice>& choices);

/// Lower bound on the elements that some rank must receive for the forward products of a layer, on any mesh without
/// depth; see product_bound().
double received_elements_bound(const Plan& plan);

/// Returns a table of the choices for people, the lower bound, and how the cheapest mesh compares with the plan's.
std::string explain_tensor_choices(const Plan& plan);

}  // namespace orthant
