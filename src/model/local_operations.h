// Functions of each token, or of each head of a token, by itself: activations, and norms of heads. A mesh runs them on
// its shards without communication. block_plan.h names them, and local_operations.cc lists them. Each has a plain and a
// fused form.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "model/primitives.h"

namespace orthant {

/// The function by its name, from plain ATen operators under autograd. LogicError for an unknown name.
at::Tensor plain_local(const std::string& function, const at::Tensor& x, const Weight* weight,
                       const AttentionShape& shape, double eps);

/// The function by its name, from one-pass CPU kernels. It saves its input and Operation::statistics, nothing else.
at::Tensor fused_local(const std::string& function, const at::Tensor& x, const Weight* weight,
                       const AttentionShape& shape, double eps);

}  // namespace orthant
