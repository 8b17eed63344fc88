#include "parallel/tensor/weight_sum.h"

#include <ATen/ATen.h>

#include "model/linear.h"

namespace orthant {

void add_to_gradient(const Weight& weight, const at::Tensor& sum) {
  at::Tensor gradient = weight.gradient;
  if (weight.take_overwrite_flag()) {
    gradient.copy_(sum);
  } else {
    gradient.add_(sum);
  }
}

void WeightSum::add(const at::Tensor& dy, const at::Tensor& x) {
  if (mesh_.plan().rows == 1) return add_weight_gradient(weight_, dy, x);
  const bool first = !sum_.defined();
  if (first) sum_ = at::empty({dy.size(1), x.size(1)}, weight_.gradient.options());
  add_product(sum_, dy.t(), x, !first);
}

void WeightSum::begin() {
  if (mesh_.plan().rows > 1) move_.emplace(mesh_.sum_rows(sum_, dim_));
}

void WeightSum::finish() {
  if (move_) add_to_gradient(weight_, move_->wait());
}

}  // namespace orthant
