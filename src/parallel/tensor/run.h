// Tensor parallelism, the doing: the model's primitives on a tensor mesh.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/attention_core.h"
#include "parallel/tensor/layers.h"

namespace orthant {

/// The primitives of a model whose weights are cut as `wholes` says, by Weight::index; gains are cut as the stream. The
/// core sees this column's heads. `hidden_size`: the stream's whole width. The Comm must outlive them.
Primitives tensor_primitives(Comm& comm, const TensorPlan& plan, std::vector<TensorWeight> wholes, int64_t hidden_size,
                             std::shared_ptr<const AttentionCore> core);

/// The same where the logits themselves are wanted: what the head (a Weight's index) makes of a column's part of the
/// vocabulary is gathered over columns, and all rows have the first one's, whatever their processors round. Without
/// gradient.
Primitives with_whole_logits(Comm& comm, Primitives primitives, int head, int64_t vocabulary);

}  // namespace orthant
