// use_weight(): the connection of a weight's own gradient buffer with autograd.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/weights.h"

namespace orthant {
namespace {

// Passes a weight to autograd, and adds the gradient that autograd returns to the weight's own buffer.
struct UseWeight : torch::autograd::Function<UseWeight> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& value, int64_t weight) {
    context->saved_data["weight"] = weight;
    return value.view_as(value);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* weight = reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
    weight->add_gradient(gradients[0]);
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor use_weight(const Weight& weight) {
  return UseWeight::apply(weight.value, reinterpret_cast<int64_t>(&weight));
}

}  // namespace orthant
