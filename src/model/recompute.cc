#include "model/transformer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <list>

namespace orthant {
namespace {

using Segment = std::function<at::Tensor(const at::Tensor&)>;

// Keeps the segment's function alive for the graph node that will run it again.
struct SegmentHolder : torch::CustomClassHolder {
  explicit SegmentHolder(Segment f) : segment(std::move(f)) {}
  Segment segment;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<SegmentHolder>& holder) {
    context->save_for_backward({x});
    context->saved_data["segment"] = c10::IValue::make_capsule(holder);
    return holder->segment(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto holder = c10::static_intrusive_pointer_cast<SegmentHolder>(context->saved_data["segment"].toCapsule());
    at::AutoGradMode with_grad(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const at::Tensor y = holder->segment(x);
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recompute(const at::Tensor& x, Segment f) {
  return Recompute::apply(x, c10::make_intrusive<SegmentHolder>(std::move(f)));
}

}  // namespace orthant
