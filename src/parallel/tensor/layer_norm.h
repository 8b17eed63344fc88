// Layer norm over a width that columns shard, for models that use one (Orthant's own models use RMS norms).
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/tensor/mesh.h"

namespace orthant {

/// y = (x - mean) / sqrt(variance + eps) * gain + bias over the full width, under autograd; x [.., C_j], gain and bias
/// [C_j]. Means and centred sums of squares of the columns are merged in pairs (Chan et al. 1983, "Algorithms for
/// computing the sample variance", equation 2.1), so that a mean far from zero costs no digits. Forward all-gathers two
/// numbers a token over columns, backward all-reduces two, in float32 or float64. The gradients of gain and bias are
/// sums over this rank's tokens.
at::Tensor tensor_layer_norm(const TensorMesh& mesh, const at::Tensor& x, const at::Tensor& gain,
                             const at::Tensor& bias, double eps, int64_t width);

}  // namespace orthant
