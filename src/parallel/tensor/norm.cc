// tensor_add_norm(): norms of a stream whose width columns shard.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/errors.h"
#include "model/device_kernels.h"
#include "model/element.h"
#include "parallel/tensor/layers.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ShardedNorm : torch::autograd::Function<ShardedNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const std::optional<at::Tensor>& maybe_residual, const at::Tensor& gain,
                               const TensorMesh* mesh, int64_t weight, double eps, int64_t width) {
    const at::Tensor residual = maybe_residual.value_or(at::Tensor());
    const int64_t cols = input.size(-1), rows = input.size(0) * input.size(1);
    const at::Tensor sum = residual.defined() ? at::empty_like(input) : input, y = at::empty_like(input);
    const auto statistics = input.options().dtype(wide(input.scalar_type()));
    const at::Tensor squares = at::empty({rows}, statistics), rstd = at::empty({rows}, statistics);
    by_element(input, [&]<class T>(T) {
      rms_norm_squares<T>(input.device(), {.x = in<T>(input),
                                           .residual = in<T>(residual),
                                           .rows = rows,
                                           .cols = cols,
                                           .sum = residual.defined() ? out<T>(sum) : nullptr,
                                           .squares = out<Wide<T>>(squares)});
    });
    mesh->comm().all_reduce(squares, {kColumn}).wait();
    by_element(input, [&]<class T>(T) {
      rms_norm_forward<T>(input.device(), {.x = in<T>(sum),
                                           .gamma = in<T>(gain),
                                           .eps = eps,
                                           .rows = rows,
                                           .cols = cols,
                                           .y = out<T>(y),
                                           .rstd = out<Wide<T>>(rstd),
                                           .width = width,
                                           .squares = in<Wide<T>>(squares)});
    });
    context->save_for_backward({sum, rstd});
    context->saved_data["mesh"] = reinterpret_cast<int64_t>(mesh);
    context->saved_data["weight"] = weight;
    context->saved_data["width"] = width;
    context->saved_data["residual"] = residual.defined();
    context->set_materialize_grads(false);
    return {y, sum};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto* mesh = reinterpret_cast<const TensorMesh*>(context->saved_data["mesh"].toInt());
    const auto& weight = *reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
    const int64_t width = context->saved_data["width"].toInt();
    const auto saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &rstd = saved[1];
    const int64_t cols = sum.size(-1), rows = sum.size(0) * sum.size(1);
    const auto answer = [](const at::Tensor& dx, const at::Tensor& dresidual) {
      return variable_list{dx, dresidual, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
    };
    if (!gradients[0].defined()) return answer(gradients[1], gradients[1]);
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dsum = gradients[1].defined() ? gradients[1].contiguous() : gradients[1];
    const at::Tensor dx = at::empty_like(sum), dots = at::empty_like(rstd);
    if (weight.take_overwrite_flag()) weight.gradient.zero_();
    by_element(sum, [&]<class T>(T) {
      rms_norm_dots<T>(sum.device(), {.dy = in<T>(dy),
                                      .s = in<T>(sum),
                                      .gamma = in<T>(weight.value),
                                      .rows = rows,
                                      .cols = cols,
                                      .dots = out<Wide<T>>(dots)});
    });
    mesh->comm().all_reduce(dots, {kColumn}).wait();
    by_element(sum, [&]<class T>(T) {
      rms_norm_backward<T>(sum.device(), {.dy = in<T>(dy),
                                          .s = in<T>(sum),
                                          .gamma = in<T>(weight.value),
                                          .rstd = in<Wide<T>>(rstd),
                                          .dsum = in<T>(dsum),
                                          .rows = rows,
                                          .cols = cols,
                                          .dx = out<T>(dx),
                                          .dgamma = out<Wide<T>>(weight.gradient),
                                          .width = width,
                                          .dots = in<Wide<T>>(dots)});
    });
    weight.written();
    return answer(dx, context->saved_data["residual"].toBool() ? dx : at::Tensor());
  }
};

// Layer norm in two passes over columns: the mean, then the centred squares, so that a mean far from zero costs no
// digits.
struct ShardedLayerNorm : torch::autograd::Function<ShardedLayerNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const std::optional<at::Tensor>& residual, const at::Tensor& gain,
                               const at::Tensor& bias, const TensorMesh* mesh, int64_t weight, double eps,
                               int64_t width) {
    const at::Tensor sum = residual ? input + *residual : input;
    const auto type = wide(sum.scalar_type());
    const at::Tensor x_NC = sum.flatten(0, -2).to(type);
    const at::Tensor mean = x_NC.sum(1).div_(static_cast<double>(width));
    mesh->comm().all_reduce(mean, {kColumn}).wait();
    const at::Tensor centred = x_NC - mean.unsqueeze(1);
    const at::Tensor rstd = centred.square().sum(1).div_(static_cast<double>(width));
    mesh->comm().all_reduce(rstd, {kColumn}).wait();
    rstd.add_(eps).rsqrt_();
    const at::Tensor y_NC = (centred * rstd.unsqueeze(1)).mul_(gain.to(type)).add_(bias.to(type));
    context->save_for_backward({sum, mean, rstd});
    context->saved_data["mesh"] = reinterpret_cast<int64_t>(mesh);
    context->saved_data["weight"] = weight;
    context->saved_data["width"] = width;
    context->saved_data["residual"] = residual.has_value();
    context->set_materialize_grads(false);
    return {y_NC.to(sum.scalar_type()).view(sum.sizes()), sum};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto* mesh = reinterpret_cast<const TensorMesh*>(context->saved_data["mesh"].toInt());
    const auto& weight = *reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
    const auto width = static_cast<double>(context->saved_data["width"].toInt());
    const auto saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &mean = saved[1], &rstd = saved[2];
    const auto answer = [&](const at::Tensor& dsum) {
      const at::Tensor dresidual = context->saved_data["residual"].toBool() ? dsum : at::Tensor();
      const at::Tensor none;
      return variable_list{dsum, dresidual, none, none, none, none, none, none};
    };
    if (!gradients[0].defined()) return answer(gradients[1]);
    const auto type = mean.scalar_type();
    const at::Tensor dy_NC = gradients[0].flatten(0, -2).to(type), scale = rstd.unsqueeze(1);
    const at::Tensor normed = (sum.flatten(0, -2).to(type) - mean.unsqueeze(1)).mul_(scale);
    const at::Tensor g = dy_NC * weight.value.to(type);
    const at::Tensor sums = at::stack({g.sum(1), (g * normed).sum(1)}).div_(width);
    mesh->comm().all_reduce(sums, {kColumn}).wait();
    const at::Tensor dx_NC = (g - sums[0].unsqueeze(1) - normed * sums[1].unsqueeze(1)).mul_(scale);
    at::Tensor dx = dx_NC.to(sum.scalar_type()).view(sum.sizes());
    if (gradients[1].defined()) dx = dx + gradients[1];
    weight.add_gradient((dy_NC * normed).sum(0));
    weight.bias->add_gradient(dy_NC.sum(0));
    return answer(dx);
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> tensor_add_norm(const TensorMesh& mesh, const std::string& function,
                                                  const at::Tensor& input, const at::Tensor& residual,
                                                  const Weight& gain, double eps, int64_t width) {
  if (function != "rms_norm" && function != "layer_norm") throw LogicError("there is no sharded norm " + function);
  std::optional<at::Tensor> other;
  if (residual.defined()) other = residual.contiguous();
  const auto handle = reinterpret_cast<int64_t>(&gain);
  const auto both =
      function == "layer_norm"
          ? ShardedLayerNorm::apply(input.contiguous(), other, gain.value, gain.bias->value, &mesh, handle, eps, width)
          : ShardedNorm::apply(input.contiguous(), other, gain.value, &mesh, handle, eps, width);
  return {both[0], both[1]};
}

}  // namespace orthant
