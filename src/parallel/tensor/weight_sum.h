// A weight's gradient if rows of the mesh shard the weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "model/weights.h"
#include "parallel/tensor/mesh.h"

namespace orthant {

/// Adds sum to the weight's gradient; the first call of a step overwrites it.
void add_to_gradient(const Weight& weight, const at::Tensor& sum);

/// Accumulates products dy^T x, sums them over rows, and adds this row's shard along `dim` to the weight's gradient.
/// dy is [N, O], x is [N, C], and [O, C] is the matrix that rows shard. Sums are in the gradient's own precision.
class WeightSum {
 public:
  /// Mesh and weight must outlive it.
  WeightSum(const TensorMesh& mesh, const Weight& weight, int dim) : mesh_(mesh), weight_(weight), dim_(dim) {}
  void add(const at::Tensor& dy_NO, const at::Tensor& x_NC);
  /// After the last add(), begin() starts the sum over rows, a reduce-scatter. finish() waits for it and adds it to the
  /// gradient.
  void begin();
  void finish();

 private:
  const TensorMesh& mesh_;
  const Weight& weight_;
  const int dim_;
  at::Tensor sum_;  // this row's partial sum; undefined on a mesh of one row
  std::optional<Redistribution> move_;
};

}  // namespace orthant
