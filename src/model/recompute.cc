#include "model/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Keeps the functions alive for the nodes that run them again, and passes the product's gradient to its backward.
struct Holder : torch::CustomClassHolder {
  explicit Holder(RangeFunctions functions) : range(std::move(functions)) {}
  RangeFunctions range;
  at::Tensor product_gradient;
};

c10::intrusive_ptr<Holder> holder_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Holder>(context->saved_data["holder"].toCapsule());
}

// The last product in the graph of the second forward, without its output. A scalar stands for the output, and the
// gradient of the output is that of the holder.
struct ProductBackward : torch::autograd::Function<ProductBackward> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const c10::intrusive_ptr<Holder>& holder) {
    context->save_for_backward({x});
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    return at::zeros({}, x.options());
  }
  static variable_list backward(AutogradContext* context, const variable_list&) {
    const auto holder = holder_of(context);
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor dy = std::exchange(holder->product_gradient, {});
    return {holder->range.product_backward(x, dy), at::Tensor()};
  }
};

struct Recompute : torch::autograd::Function<Recompute> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const c10::intrusive_ptr<Holder>& holder) {
    context->save_for_backward({input});
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    context->set_materialize_grads(false);
    const RangeFunctions::Values values = holder->range.before_product(input);
    const at::Tensor product = holder->range.product(values.x);
    return values.stream.defined() ? variable_list{product, values.stream} : variable_list{product};
  }

  // The argument is not const, so that each gradient can be freed as soon as it has been read.
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    const auto holder = holder_of(context);
    at::AutoGradMode with_grad(true);
    const at::Tensor input = context->get_saved_variables()[0].detach().requires_grad_(true);
    torch::autograd::edge_list roots;
    variable_list of_roots;
    {
      const RangeFunctions::Values values = holder->range.before_product(input);
      const at::Tensor product = ProductBackward::apply(values.x, holder);
      holder->product_gradient = std::move(gradients[0]);
      roots.push_back(torch::autograd::impl::gradient_edge(product));
      of_roots.push_back(at::zeros({}, product.options()));
      if (values.stream.defined()) {
        roots.push_back(torch::autograd::impl::gradient_edge(values.stream));
        of_roots.push_back(std::move(gradients[1]));
      }
    }  // the tensors are freed as backward reads them, because only edges of the graph are held
    constexpr bool kKeepGraph = false, kCreateGraph = false, kAccumulate = true;
    torch::autograd::Engine::get_default_engine().execute(roots, of_roots, kKeepGraph, kCreateGraph, kAccumulate);
    return {input.grad(), at::Tensor()};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> recompute(RangeFunctions range, const at::Tensor& input) {
  const variable_list outputs = Recompute::apply(input, c10::make_intrusive<Holder>(std::move(range)));
  return {outputs[0], outputs.size() > 1 ? outputs[1] : at::Tensor()};
}

}  // namespace orthant
