// The run file's nouns: the model and the mesh that its keys describe.
#pragma once

#include "base/output_loss.h"
#include "mesh/mesh.h"
#include "model/architecture.h"
#include "parallel/sequence/plan.h"
#include "parallel/tensor/plan.h"
#include "plan/config.h"

namespace orthant {

/// The decoder that the run file describes. vocab_size (the tokenizer's) fills model.vocab_size = 0, with one more
/// where there is a mask token. ConfigError where sizes do not fit.
Architecture architecture_of(const Config& config, int64_t vocab_size);

/// What its training makes of a token's logits.
OutputLoss output_loss_of(const Config& config);

/// The mesh of a run over `ranks` ranks; -1 takes the rest. ConfigError with the nearest legal degree.
Mesh mesh_of(const Config& config, int ranks);

/// How it cuts sequences over that mesh. ConfigError where it cannot.
SequencePlan sequence_plan_of(const Config& config, const Mesh& mesh);

/// How weights and the residual stream are cut over it. ConfigError where they cannot be.
TensorPlan tensor_plan_of(const Config& config, const Mesh& mesh, const SequencePlan& sequence);

/// Checks the mesh, and how sequences and weights are sharded over it, as the three functions above do. It does not
/// choose the mesh of kind "auto".
void check_mesh(const Config& config, int ranks);

/// The axes that cut batches, from inner to outer.
inline const Axes kBatchAxes = {kRow, kDepth, kData};

/// One layer's attention on a microbatch of so many sequences.
SequenceAttention attention_of(const Config& config, const Architecture& architecture, int64_t sequences);

}  // namespace orthant
