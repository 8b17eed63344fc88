// A weight's gradient where rows of the mesh hold parts of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "model/weights.h"
#include "parallel/tensor/mesh.h"

namespace orthant {

/// gradient (+)= sum; the first of a step overwrites.
void add_to_gradient(const Weight& weight, const at::Tensor& sum);

/// gradient (+)= this row's part, along the dim, of the sum over rows of all dy^T x that are added; dy [N, O], x
/// [N, C], and [O, C] is the whole that rows hold together. In the gradient's own precision on the way.
class WeightSum {
 public:
  /// Mesh and weight must outlive it.
  WeightSum(const TensorMesh& mesh, const Weight& weight, int dim) : mesh_(mesh), weight_(weight), dim_(dim) {}
  void add(const at::Tensor& dy_NO, const at::Tensor& x_NC);
  /// Once all have been added: starts the sum over rows, a reduce-scatter; and returns when it is added.
  void begin();
  void finish();

 private:
  const TensorMesh& mesh_;
  const Weight& weight_;
  const int dim_;
  at::Tensor sum_;  // of this row, where there are others
  std::optional<Redistribution> move_;
};

}  // namespace orthant
