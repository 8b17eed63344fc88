// Norms over the residual stream, together with the addition before them. block_plan.h names them; each has a plain and
// a fused form. norms.cc lists them. parallel/tensor/norm.cc has them for a stream whose width columns shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "model/weights.h"

namespace orthant {

/// Returns (x, s): s = input + residual (s = input if residual is undefined), and x = the norm of s; [B,T,C] each. From
/// plain ATen operators under autograd. LogicError for an unknown function.
std::pair<at::Tensor, at::Tensor> plain_add_norm(const std::string& function, const at::Tensor& input_BTC,
                                                 const at::Tensor& residual_BTC, const Weight& gain_C, double eps);

/// The same from one-pass CPU kernels. It saves s and Operation::statistics, nothing else.
std::pair<at::Tensor, at::Tensor> fused_add_norm(const std::string& function, const at::Tensor& input_BTC,
                                                 const at::Tensor& residual_BTC, const Weight& gain_C, double eps);

}  // namespace orthant
