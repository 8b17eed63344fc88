#include "plan/plan_memory.h"

#include <algorithm>
#include <map>
#include <vector>

#include "plan/gradient_staging.h"
#include "plan/tensor_memory.h"

namespace orthant {
namespace {

// Of what a rank shares with those like it.
struct Held {
  FlatLayout flat;
  std::vector<GradientBucket> buckets;
};

MemoryBytes memory_of_rank(const Plan& plan, const Held& held, int rank) {
  const FlatLayout& flat = held.flat;
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
  const auto activations_of = [&](int64_t vocabulary) {
    Architecture a = plan.architecture;
    a.vocab_size = vocabulary;
    if (whole) return activation_bytes(a, tokens, element, recompute, core);
    TensorShape shape = tensor_shape_of(plan, rank, largest);
    shape.vocabulary = vocabulary;
    return tensor_activation_bytes(a, plan.tensor, shape, recompute, core);
  };
  const ActivationBytes activations = activations_of(plan.architecture.vocab_size);
  MemoryBytes memory;
  memory.parameters = flat.elements * (element == master ? master : master + element);
  memory.gradients = flat.elements * master;
  memory.optimizer = 2 * flat.elements * master;
  memory.activations = activations.kept;
  const int64_t tables = plan.architecture.max_position_embeddings * plan.architecture.head_dim * master;
  const int64_t batch = 3 * tokens * 8;
  // Block by block less is kept, and more sums of gradients are on their way; one that a block begins itself is counted
  // with the next. Without a vocabulary the largest temporaries are a block's.
  const std::vector<int64_t> begun = gradient_staging(plan, held.buckets, rank);
  const int64_t of_block = activations_of(0).working_peak;
  int64_t working = activations.working_peak, freed = 0, sums = begun.back();
  for (size_t layer = begun.size() - 2; layer > 0; --layer) {
    working = std::max(working, of_block - freed + sums);
    freed += activations.boundary + (recompute ? 0 : activations.per_block);
    sums += begun[layer];
  }
  working = std::max(working, activations.boundary - activations.kept + sums + begun.front());
  memory.working = working + tables + batch;
  return memory;
}

}  // namespace

void add_memory(Plan& plan) {
  std::map<int, Held> held;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    if (plan.first_like(rank) == rank) {
      held.emplace(rank, Held{flat_layout(plan.parameters_of(rank)), plan.buckets_of(rank)});
    }
    plan.memory.push_back(memory_of_rank(plan, held.at(plan.first_like(rank)), rank));
  }
}

}  // namespace orthant
