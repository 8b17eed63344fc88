#include "parallel/tensor/weight_sum.h"

#include <ATen/ATen.h>

#include "model/linear.h"

namespace orthant {

void add_to_gradient(const Weight& weight, const at::Tensor& sum) {
  at::Tensor gradient = weight.gradient;
  if (weight.take_fresh()) {
    gradient.copy_(sum);
  } else {
    gradient.add_(sum);
  }
}

void add_gradient_of_rows(const TensorMesh& mesh, const Weight& weight, const at::Tensor& dy, const at::Tensor& x,
                          int dim) {
  if (mesh.plan().rows == 1) return add_weight_gradient(weight, dy, x);
  at::Tensor summand = at::empty({dy.size(1), x.size(1)}, weight.gradient.options());
  add_product(summand, dy.t(), x, false);
  add_to_gradient(weight, mesh.sum_rows(summand, dim).wait());
}

}  // namespace orthant
