// Tensor parallelism, libtorch half: the model's primitives on a tensor mesh.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/attention_core.h"
#include "parallel/tensor/layers.h"

namespace orthant {

/// Primitives of a model on this mesh. unsharded_weights: by Weight::index. Gains are sharded like the stream's width.
/// The core gets the heads of this column. hidden_size: the stream's full width. The Comm must outlive the primitives.
Primitives tensor_primitives(Comm& comm, const TensorPlan& plan, std::vector<UnshardedWeight> unsharded_weights,
                             int64_t hidden_size, std::shared_ptr<const AttentionCore> core);

}  // namespace orthant
