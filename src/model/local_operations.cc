// The local operations by their names:
//
//   swiglu   silu(gate) * up; each row holds gate, then up: [B,T,2I] -> [B,T,I]
#include "model/local_operations.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/errors.h"
#include "model/element.h"
#include "model/kernels/activation.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    const int64_t width = gate_up.size(-1) / 2, rows = gate_up.numel() / (2 * width);
    auto shape = gate_up.sizes().vec();
    shape.back() = width;
    const at::Tensor y = at::empty(shape, gate_up.options());
    by_element(gate_up, [&]<class T>(T) { swiglu_forward<T>({in<T>(gate_up), rows, width, out<T>(y)}); });
    context->save_for_backward({gate_up});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor gate_up = context->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    const int64_t width = dy.size(-1), rows = dy.numel() / width;
    const at::Tensor d_gate_up = at::empty_like(gate_up);
    by_element(dy,
               [&]<class T>(T) { swiglu_backward<T>({in<T>(dy), in<T>(gate_up), rows, width, out<T>(d_gate_up)}); });
    return {d_gate_up};
  }
};

at::Tensor plain_swiglu(const at::Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

}  // namespace

at::Tensor plain_local(const std::string& function, const at::Tensor& x, const Weight* /*weight*/,
                       const AttentionShape& /*shape*/, double /*eps*/) {
  if (function == "swiglu") return plain_swiglu(x);
  throw LogicError("there is no local operation " + function);
}

at::Tensor fused_local(const std::string& function, const at::Tensor& x, const Weight* /*weight*/,
                       const AttentionShape& /*shape*/, double /*eps*/) {
  if (function == "swiglu") return Swiglu::apply(x);
  throw LogicError("there is no local operation " + function);
}

}  // namespace orthant
