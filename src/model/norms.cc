// The norms by their names:
//
//   rms_norm   s * rsqrt(mean(s^2) + eps) * gain
//   layer_norm (s - mean(s)) * rsqrt(var(s) + eps) * gain + bias (Ba et al. 2016, arXiv 1607.06450)
#include "model/norms.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/errors.h"
#include "model/device_kernels.h"
#include "model/element.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_layer_norm(const std::string& function) {
  if (function != "rms_norm" && function != "layer_norm") throw LogicError("there is no norm " + function);
  return function == "layer_norm";
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
      rms_norm_forward<T>(input.device(), {.x = in<T>(input),
                                           .residual = in<T>(residual),
                                           .gamma = in<T>(gain),
                                           .eps = eps,
                                           .rows = rows,
                                           .cols = cols,
                                           .sum = residual.defined() ? out<T>(sum) : nullptr,
                                           .y = out<T>(y),
                                           .rstd = out<Wide<T>>(rstd)});
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
      rms_norm_backward<T>(sum.device(), {.dy = in<T>(dy),
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

// Layer norm by ATen's kernels, with statistics in float32 or float64. The gradients of gain and bias are sums over all
// rows in one order, so that their bits do not depend on the number of threads.
struct AddLayerNorm : torch::autograd::Function<AddLayerNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const std::optional<at::Tensor>& residual, const at::Tensor& gain,
                               const at::Tensor& bias, int64_t weight, double eps) {
    const at::Tensor sum = residual ? input + *residual : input;
    const auto type = wide(sum.scalar_type());
    const auto [y, mean, rstd] = at::native_layer_norm(sum, {sum.size(-1)}, gain.to(type), bias.to(type), eps);
    context->save_for_backward({sum, mean, rstd});
    context->saved_data["weight"] = weight;
    context->saved_data["residual"] = residual.has_value();
    context->set_materialize_grads(false);
    return {y, sum};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto& weight = *reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
    const auto saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &mean = saved[1], &rstd = saved[2];
    const auto answer = [&](const at::Tensor& dsum) {
      const at::Tensor dresidual = context->saved_data["residual"].toBool() ? dsum : at::Tensor();
      return variable_list{dsum, dresidual, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
    };
    if (!gradients[0].defined()) return answer(gradients[1]);
    const at::Tensor dy = gradients[0].contiguous(), gain = weight.value.to(mean.scalar_type());
    at::Tensor dx = std::get<0>(at::native_layer_norm_backward(dy, sum, {sum.size(-1)}, mean, rstd, gain, gain,
                                                               {true, false, false}));
    if (gradients[1].defined()) dx = dx.add_(gradients[1]);
    const at::Tensor wide_dy = dy.flatten(0, -2).to(mean.scalar_type());
    const at::Tensor normed = (sum.to(mean.scalar_type()) - mean).mul_(rstd).flatten(0, -2);
    weight.add_gradient(normed.mul_(wide_dy).sum(0));
    weight.bias->add_gradient(wide_dy.sum(0));
    return answer(dx);
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> plain_add_norm(const std::string& function, const at::Tensor& input,
                                                 const at::Tensor& residual, const Weight& gain, double eps) {
  const at::Tensor sum = residual.defined() ? input + residual : input;
  const auto dtype = wide(sum.scalar_type());
  const at::Tensor s = sum.to(dtype);
  if (is_layer_norm(function)) {
    const at::Tensor centred = s - s.mean(-1, true);
    const at::Tensor normed = centred * at::rsqrt(centred.pow(2).mean(-1, true) + eps);
    return {(normed * use_weight(gain).to(dtype) + use_weight(*gain.bias).to(dtype)).to(sum.scalar_type()), sum};
  }
  const at::Tensor normed = s * at::rsqrt(s.pow(2).mean(-1, true) + eps);
  return {(normed * use_weight(gain).to(dtype)).to(sum.scalar_type()), sum};
}

std::pair<at::Tensor, at::Tensor> fused_add_norm(const std::string& function, const at::Tensor& input,
                                                 const at::Tensor& residual, const Weight& gain, double eps) {
  std::optional<at::Tensor> other;
  if (residual.defined()) other = residual.contiguous();
  const auto handle = reinterpret_cast<int64_t>(&gain);
  const auto both = is_layer_norm(function)
                        ? AddLayerNorm::apply(input.contiguous(), other, gain.value, gain.bias->value, handle, eps)
                        : AddNorm::apply(input.contiguous(), other, gain.value, handle, eps);
  return {both[0], both[1]};
}

}  // namespace orthant
