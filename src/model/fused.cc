// The primitives built on one-pass kernels: embedding, norm and SwiGLU as autograd functions on the CPU.
#include "model/attention_core.h"
#include "model/dropout.h"
#include "model/element.h"
#include "model/kernels/activation.h"
#include "model/kernels/norm.h"
#include "model/linear.h"
#include "model/loss.h"
#include "model/primitives.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t handle(const Weight& weight) { return reinterpret_cast<int64_t>(&weight); }
const Weight& weight_of(AutogradContext* context) {
  return *reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens, const at::Tensor& table,
                            int64_t weight) {
    context->save_for_backward({tokens});
    context->saved_data["weight"] = weight;
    return at::embedding(table, tokens);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Weight& weight = weight_of(context);
    const at::Tensor tokens = context->get_saved_variables()[0].flatten();
    if (weight.take_overwrite_flag()) weight.gradient.zero_();
    const at::Tensor dx = gradients[0].reshape({tokens.numel(), -1}).to(weight.gradient.scalar_type());
    weight.gradient.index_add_(0, tokens, dx);
    weight.written();
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

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
    const Weight& weight = weight_of(context);
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

}  // namespace

Primitives fused_primitives() { return fused_primitives(std::make_shared<AttentionCore>(local_attention())); }

Primitives fused_primitives(std::shared_ptr<const AttentionCore> core) {
  return {
      .embedding = [](const at::Tensor& tokens,
                      const Weight& table) { return Embedding::apply(tokens, table.value, handle(table)); },
      .add_norm =
          [](const at::Tensor& input, const at::Tensor& residual, const Weight& gain, double eps) {
            std::optional<at::Tensor> other;
            if (residual.defined()) other = residual.contiguous();
            auto both = AddNorm::apply(input.contiguous(), other, gain.value, handle(gain), eps);
            return std::pair{both[0], both[1]};
          },
      .linear = linear,
      .attention = [core](const at::Tensor& qkv, const Microbatch& batch,
                          const AttentionShape& shape) { return attention(*core, qkv, batch, shape); },
      .swiglu = [](const at::Tensor& gate_up) { return Swiglu::apply(gate_up); },
      .dropout = dropout_with_key,
      .cross_entropy = fused_cross_entropy,
      .logits = [](const at::Tensor& x, const Weight& head,
                   const Microbatch& batch) { return linear(labeled_rows(x, batch.labels_BT), head); },
  };
}

}  // namespace orthant
