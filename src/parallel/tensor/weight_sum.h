// A weight's gradient where rows of the mesh hold parts of it.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/weights.h"
#include "parallel/tensor/mesh.h"

namespace orthant {

/// gradient (+)= sum; the first of a step overwrites.
void add_to_gradient(const Weight& weight, const at::Tensor& sum);

/// gradient (+)= this row's part, along the dim, of the sum over rows of dy^T x; dy [N, O], x [N, C], and [O, C] is the
/// whole that rows hold together. In the gradient's own precision on the way.
void add_gradient_of_rows(const TensorMesh& mesh, const Weight& weight, const at::Tensor& dy_NO, const at::Tensor& x_NC,
                          int dim);

}  // namespace orthant
