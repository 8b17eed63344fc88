// Builds the model, the mesh and the sharding that the keys of a run file describe.
#pragma once

#include "base/output_loss.h"
#include "config/config.h"
#include "mesh/mesh.h"
#include "model/architecture.h"
#include "model/kept_elements_plan.h"
#include "model/recompute_plan.h"
#include "parallel/sequence/plan.h"
#include "parallel/tensor/plan.h"

namespace orthant {

/// Returns the decoder that the run file describes. It needs `vocab_size` entries, the tokenizer's, and with the masked
/// objective one more for the mask token. A model.vocab_size of 0 takes that number. Throws ConfigError if
/// model.vocab_size is otherwise smaller.
Architecture make_architecture(const Config& config, int64_t vocab_size);

/// Returns the loss that training computes from a token's logits.
OutputLoss make_output_loss(const Config& config);

/// Returns which operations of which blocks backward recomputes.
Recomputation make_recomputation(const Config& config);

/// Returns the gradients that a rank keeps between passes: the owned ones if gradients are sharded, and none if each
/// unit is updated as soon as its gradients are summed.
KeptElements kept_gradients(const Config& config);
/// True if a rank does not keep all gradients: they exist in full only while the passes of their unit need them.
bool has_gradients_by_unit(const Config& config);

/// True if messages of more than one rank travel over NCCL: the run is on GPUs and names no transport of CPU tensors,
/// with which tensors would travel through host memory.
bool uses_nccl(const Config& config);
/// True if the GPU decides whether and how a step updates the weights. The host then does not wait for the gradient
/// norm; it learns the step's result during the next step. Muon, updates in backward, and post-validation need the
/// host.
bool reports_late(const Config& config);
/// True if optimizer state or activations are kept in host memory.
bool offloads(const Config& config);

/// True if the embedding and the output layer are sharded by vocabulary rows over all pipeline ranks.
bool shards_vocabulary(const Config& config);

/// Returns the mesh of a run over `ranks` ranks; a degree of -1 takes the remaining ranks. Throws ConfigError with the
/// nearest legal degree if the degrees do not fit the ranks.
Mesh make_mesh(const Config& config, int ranks);

/// Returns how the run shards sequences over that mesh. Throws ConfigError if it cannot.
SequencePlan make_sequence_plan(const Config& config, const Mesh& mesh);

/// Returns how weights and the residual stream are sharded over that mesh. Throws ConfigError if they cannot be.
TensorPlan make_tensor_plan(const Config& config, const Mesh& mesh, const SequencePlan& sequence);

/// Checks the mesh and the sharding of sequences and weights; throws the errors of the three functions above. With
/// tensor_parallel_kind = "auto" it does not check the sharding of weights, because that is not chosen yet.
void check_mesh(const Config& config, int ranks);

/// The axes of the mesh that shard the batch, from inner to outer.
Axes batch_axes(const Mesh& mesh);
/// The number of data ranks: those of one copy of the sharded states times the number of copies.
int data_ranks(const Mesh& mesh);

/// Returns the sizes of one layer's attention, with all heads, for a microbatch of `sequences` sequences.
SequenceAttention attention_of(const Config& config, const Architecture& architecture, int64_t sequences);

/// The token id of the mask if model.objective = "masked": the first id after the tokenizer's own.
constexpr int64_t mask_token(int64_t tokenizer_vocab_size) { return tokenizer_vocab_size; }

/// Bytes of one element: "float32" 4, "bfloat16" 2, "float64" 8.
int dtype_bytes(const std::string& dtype);
/// Bytes of one element of master weights, gradients or optimizer moments: 8 for float64, otherwise 4.
int master_bytes(const Config& config);

}  // namespace orthant
