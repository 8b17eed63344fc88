// The norms by their names:
//
//   rms_norm   s * rsqrt(mean(s^2) + eps) * gain
#include "model/norms.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/errors.h"
#include "model/element.h"
#include "model/kernels/norm.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_function(const std::string& function) {
  if (function != "rms_norm") throw LogicError("there is no norm " + function);
}

struct AddNorm : torch::autograd::Function<AddNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const std::optional<at::Tensor>& maybe_residual, const at::Tensor& gain, int64_t weight,
                               double eps) {
    const at::Tensor residual = maybe_residual.value_or(at::Tensor());
    const int64_t cols = input.size(-1), rows = input.numel() / cols;
    const at::Tensor sum = residual.defined() ? at::empty_like(input) : input;
    const at::Tensor y = at::empty_like(input);
    const at::Tensor rstd = at::empty({rows}, input.options().dtype(wide(input.scalar_type())));
    by_element(input, [&]<class T>(T) {
      rms_norm_forward<T>({.x = in<T>(input), .residual = in<T>(residual), .gamma = in<T>(gain), .eps = eps,
                           .rows = rows, .cols = cols, .sum = residual.defined() ? out<T>(sum) : nullptr,
                           .y = out<T>(y), .rstd = out<Wide<T>>(rstd)});
    });
    context->save_for_backward({sum, rstd});
    context->saved_data["weight"] = weight;
    context->saved_data["residual"] = residual.defined();
    context->set_materialize_grads(false);
    return {y, sum};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Weight& weight = *reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
    const auto saved = context->get_saved_variables();
    const at::Tensor& sum = saved[0];
    const int64_t cols = sum.size(-1), rows = sum.numel() / cols;
    if (!gradients[0].defined()) return {gradients[1], gradients[1], at::Tensor(), at::Tensor(), at::Tensor()};
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dsum = gradients[1].defined() ? gradients[1].contiguous() : gradients[1];
    const at::Tensor dx = at::empty_like(sum);
    if (weight.take_overwrite_flag()) weight.gradient.zero_();
    by_element(sum, [&]<class T>(T) {
      rms_norm_backward<T>({.dy = in<T>(dy),
                            .s = in<T>(sum),
                            .gamma = in<T>(weight.value),
                            .rstd = in<Wide<T>>(saved[1]),
                            .dsum = in<T>(dsum),
                            .rows = rows,
                            .cols = cols,
                            .dx = out<T>(dx),
                            .dgamma = out<Wide<T>>(weight.gradient)});
    });
    weight.written();
    const bool residual = context->saved_data["residual"].toBool();
    return {dx, residual ? dx : at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> plain_add_norm(const std::string& function, const at::Tensor& input,
                                                 const at::Tensor& residual, const Weight& gain, double eps) {
  check_function(function);
  const at::Tensor sum = residual.defined() ? input + residual : input;
  const auto dtype = wide(sum.scalar_type());
  const at::Tensor s = sum.to(dtype);
  const at::Tensor normed = s * at::rsqrt(s.pow(2).mean(-1, true) + eps);
  return {(normed * use_weight(gain).to(dtype)).to(sum.scalar_type()), sum};
}

std::pair<at::Tensor, at::Tensor> fused_add_norm(const std::string& function, const at::Tensor& input,
                                                 const at::Tensor& residual, const Weight& gain, double eps) {
  check_function(function);
  std::optional<at::Tensor> other;
  if (residual.defined()) other = residual.contiguous();
  const auto both =
      AddNorm::apply(input.contiguous(), other, gain.value, reinterpret_cast<int64_t>(&gain), eps);
  return {both[0], both[1]};
}

}  // namespace orthant
