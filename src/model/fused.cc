// The primitives on one-pass kernels: norm, attention, SwiGLU and dropout as autograd functions on the CPU.
#include "model/dropout.h"
#include "model/element.h"
#include "model/kernels/activation.h"
#include "model/kernels/norm.h"
#include "model/kernels/rotary.h"
#include "model/linear.h"
#include "model/loss.h"
#include "model/primitives.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t handle(const Weight& weight) { return reinterpret_cast<int64_t>(&weight); }
const Weight& weight_of(AutogradContext* context) {
  return *reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens, const at::Tensor& table, int64_t weight) {
    context->save_for_backward({tokens});
    context->saved_data["weight"] = weight;
    return at::embedding(table, tokens);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Weight& weight = weight_of(context);
    const at::Tensor tokens = context->get_saved_variables()[0].flatten();
    if (weight.take_fresh()) weight.gradient.zero_();
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
    if (weight.take_fresh()) weight.gradient.zero_();
    by_element(sum, [&]<class T>(T) {
      rms_norm_backward<T>({.dy = in<T>(dy), .s = in<T>(sum), .gamma = in<T>(weight.value), .rstd = in<Wide<T>>(saved[1]),
                            .dsum = in<T>(dsum), .rows = rows, .cols = cols, .dx = out<T>(dx),
                            .dgamma = out<Wide<T>>(weight.gradient)});
    });
    weight.written();
    const bool residual = context->saved_data["residual"].toBool();
    return {dx, residual ? dx : at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Rotary positions and ATen's flash attention, which gives the log-sum-exp that blockwise attention needs.
// The kernel wants as many key heads as query heads: they are repeated for the call and kept once.
struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor per_query_head(const at::Tensor& kv_BKTD, int64_t heads) {
    const int64_t B = kv_BKTD.size(0), K = kv_BKTD.size(1), T = kv_BKTD.size(2), D = kv_BKTD.size(3);
    if (K == heads) return kv_BKTD;
    return kv_BKTD.unsqueeze(2).expand({B, K, heads / K, T, D}).reshape({B, heads, T, D});
  }

  template <class T>
  static RotaryTables<T> tables(const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& positions) {
    return {in<Wide<T>>(cos), in<Wide<T>>(sin), cos.size(0), in<int64_t>(positions), true};
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& positions,
                            const at::Tensor& cos, const at::Tensor& sin, int64_t heads, int64_t kv_heads) {
    const int64_t B = qkv.size(0), T = qkv.size(1), D = cos.size(1) * 2;
    const at::Tensor q = at::empty({B, heads, T, D}, qkv.options());
    const at::Tensor k = at::empty({B, kv_heads, T, D}, qkv.options());
    const at::Tensor v = at::empty({B, kv_heads, T, D}, qkv.options());
    by_element(qkv, [&]<class E>(E) {
      rope_split_forward<E>({.shape = {B, T, heads, kv_heads, D}, .tables = tables<E>(cos, sin, positions),
                             .qkv_BTC = in<E>(qkv), .q_BHTD = out<E>(q), .k_BHTD = out<E>(k), .v_BHTD = out<E>(v)});
    });
    auto [o_BHTD, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        q, per_query_head(k, heads), per_query_head(v, heads), 0.0, true, std::nullopt, 1 / std::sqrt(static_cast<double>(D)));
    const at::Tensor o = o_BHTD.transpose(1, 2).reshape({B, T, heads * D});  // the kernel wrote it in this order: a view
    context->save_for_backward({q, k, v, o, lse, positions, cos, sin});
    return o;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &cos = saved[6];
    const int64_t B = q.size(0), heads = q.size(1), T = q.size(2), D = q.size(3), kv_heads = k.size(1);
    auto by_head = [&](const at::Tensor& t_BTE) { return t_BTE.view({B, T, heads, D}).transpose(1, 2); };
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        by_head(gradients[0].contiguous()), q, per_query_head(k, heads), per_query_head(v, heads), by_head(saved[3]), saved[4],
        0.0, true, std::nullopt, 1 / std::sqrt(static_cast<double>(D)));
    const at::Tensor dqkv = at::empty({B, T, (heads + 2 * kv_heads) * D}, q.options());
    const at::Tensor dq_dense = dq.contiguous(), dk_dense = dk.contiguous(), dv_dense = dv.contiguous();
    by_element(q, [&]<class E>(E) {
      rope_split_backward<E>({.shape = {B, T, heads, kv_heads, D}, .tables = tables<E>(cos, saved[7], saved[5]),
                              .dq_BHTD = in<E>(dq_dense), .dk_BHTD = in<E>(dk_dense), .dv_BHTD = in<E>(dv_dense),
                              .kv_per_query_head = kv_heads != heads, .dqkv_BTC = out<E>(dqkv)});
    });
    return {dqkv, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
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
    by_element(dy, [&]<class T>(T) { swiglu_backward<T>({in<T>(dy), in<T>(gate_up), rows, width, out<T>(d_gate_up)}); });
    return {d_gate_up};
  }
};

}  // namespace

Primitives fused_primitives() {
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
      .attention =
          [](const at::Tensor& qkv, const at::Tensor& positions, const AttentionShape& shape) {
            return Attention::apply(qkv, positions, shape.cos_PD, shape.sin_PD, shape.heads, shape.kv_heads);
          },
      .swiglu = [](const at::Tensor& gate_up) { return Swiglu::apply(gate_up); },
      .dropout = keyed_dropout,
      .cross_entropy = fused_cross_entropy,
  };
}

}  // namespace orthant
