// Layer norm over a width of which each column has a part, for models that have one (Orthant's own have RMS norms).
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/tensor/mesh.h"

namespace orthant {

/// y = (x - mean) / sqrt(variance + eps) * gain + bias over the whole width, x [.., C_j], gain and bias [C_j], under
/// autograd. Mean and centred squares of the parts are merged in pairs (Chan et al. 1983, "Algorithms for computing the
/// sample variance", equation 2.1), so that a mean far from zero costs no digits. An all-gather of two numbers a token
/// over columns forward, an all-reduce of two backward, in float32 or wider. The gradients of gain and bias are this
/// rank's tokens'.
at::Tensor tensor_layer_norm(const TensorMesh& mesh, const at::Tensor& x, const at::Tensor& gain,
                             const at::Tensor& bias, double eps, int64_t width);

}  // namespace orthant
