#include "plan/plan_memory.h"

#include <map>

#include "plan/tensor_memory.h"

namespace orthant {
namespace {

MemoryBytes memory_of_rank(const Plan& plan, const FlatLayout& flat, int rank) {
  const Config& config = plan.config;
  const auto& share = plan.share(rank);
  const int64_t largest = share.microbatches.front().size();  // none is larger
  const int element = dtype_bytes(config.training.dtype), master = master_bytes(config);
  const bool recompute = config.activation_checkpoint.mode == "full";
  const int64_t tokens = largest * plan.num_places(rank);
  const SequenceMemory attention = sequence_memory(plan.sequence, attention_of(plan, largest),
                                                   plan.mesh.coord(rank, "ulysses"), plan.mesh.coord(rank, "ring"));
  const AttentionBytes core{attention.kept_bytes, attention.working_bytes};
  const bool whole = plan.tensor.rows * plan.tensor.columns == 1;
  const ActivationBytes activations =
      whole ? activation_bytes(plan.architecture, tokens, element, recompute, core)
            : tensor_activation_bytes(plan.architecture, plan.tensor, tensor_shape_of(plan, rank, largest), recompute,
                                      core);
  MemoryBytes memory;
  memory.parameters = flat.elements * (element == master ? master : master + element);
  memory.gradients = flat.elements * master;
  memory.optimizer = 2 * flat.elements * master;
  memory.activations = activations.kept;
  const int64_t tables = plan.architecture.max_position_embeddings * plan.architecture.head_dim * master;
  const int64_t batch = 3 * tokens * 8;
  memory.working = activations.working_peak + tables + batch;
  return memory;
}

}  // namespace

void add_memory(Plan& plan) {
  std::map<int, FlatLayout> flats;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    if (plan.first_like(rank) == rank) flats.emplace(rank, flat_layout(plan.parameters_of(rank)));
    plan.memory.push_back(memory_of_rank(plan, flats.at(plan.first_like(rank)), rank));
  }
}

}  // namespace orthant
