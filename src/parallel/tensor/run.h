// Tensor parallelism, libtorch half: the model's primitives on a tensor mesh.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/attention_core.h"
#include "parallel/tensor/layers.h"

namespace orthant {

/// Primitives of a model whose weights are sharded as `wholes` says, by Weight::index. Gains are sharded like the
/// stream's width. The core gets the heads of this column. hidden_size: the stream's full width. The Comm must outlive
/// the primitives.
Primitives tensor_primitives(Comm& comm, const TensorPlan& plan, std::vector<TensorWeight> wholes, int64_t hidden_size,
                             std::shared_ptr<const AttentionCore> core);

/// The same primitives, where the linear layer of the head (a Weight's index) returns full logits for generation: each
/// column's logits are gathered over columns, and row 0 broadcasts them, because rows may round differently. Without
/// gradient.
Primitives with_full_logits(Comm& comm, Primitives primitives, int head, int64_t vocabulary);

}  // namespace orthant
