// The local operations by their names:
//
//   swiglu     silu(gate) * up; each row holds gate, then up: [B,T,2I] -> [B,T,I]
//   gelu       x Phi(x), where Phi is the normal distribution function: [B,T,I] -> [B,T,I]
//   gelu_tanh  its approximation by a tanh (Hendrycks and Gimpel 2016, arXiv 1606.08415)
//   head_norm  RMS norms of each query head and each key head of qkv; the value heads stay: [B,T,(H+2K)D] -> the same.
//              The first D gains are those of queries, the next D those of keys
#include "model/local_operations.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>

#include "base/errors.h"
#include "model/device_kernels.h"
#include "model/element.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Norms of the query heads and the key heads of qkv [B,T,(H+2K)D]. The heads of one token are adjacent rows of D.
struct HeadNorm : torch::autograd::Function<HeadNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& gains_2D,
                            int64_t weight, int64_t heads, int64_t kv_heads, int64_t head_dim, double eps) {
    const int64_t tokens = qkv.size(0) * qkv.size(1);
    const at::Tensor y = at::empty_like(qkv);
    const at::Tensor rstd =
        at::empty({tokens * (heads + kv_heads)}, qkv.options().dtype(wide(qkv.scalar_type())));
    by_element(qkv, [&]<class T>(T) {
      for (const Heads& part : parts_of(heads, kv_heads, head_dim)) {
        rms_norm_forward<T>(qkv.device(), {.x = in<T>(qkv) + part.offset,
                                           .gamma = in<T>(gains_2D) + part.first_gain,
                                           .eps = eps,
                                           .rows = tokens * part.heads,
                                           .cols = head_dim,
                                           .y = out<T>(y) + part.offset,
                                           .rstd = out<Wide<T>>(rstd) + tokens * part.heads_before,
                                           .groups = {.rows = part.heads, .stride = qkv.size(2)}});
      }
    });
    values_of(y, kv_heads * head_dim).copy_(values_of(qkv, kv_heads * head_dim));
    context->save_for_backward({qkv, rstd});
    context->saved_data["weight"] = weight;
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Weight& weight = *reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
    const auto saved = context->get_saved_variables();
    const at::Tensor &qkv = saved[0], &rstd = saved[1];
    const int64_t heads = context->saved_data["heads"].toInt(), kv_heads = context->saved_data["kv_heads"].toInt();
    const int64_t tokens = qkv.size(0) * qkv.size(1), head_dim = qkv.size(2) / (heads + 2 * kv_heads);
    const at::Tensor dy = gradients[0].contiguous(), dx = at::empty_like(qkv);
    if (weight.take_overwrite_flag()) weight.gradient.zero_();
    by_element(qkv, [&]<class T>(T) {
      for (const Heads& part : parts_of(heads, kv_heads, head_dim)) {
        rms_norm_backward<T>(qkv.device(), {.dy = in<T>(dy) + part.offset,
                                            .s = in<T>(qkv) + part.offset,
                                            .gamma = in<T>(weight.value) + part.first_gain,
                                            .rstd = in<Wide<T>>(rstd) + tokens * part.heads_before,
                                            .rows = tokens * part.heads,
                                            .cols = head_dim,
                                            .dx = out<T>(dx) + part.offset,
                                            .dgamma = out<Wide<T>>(weight.gradient) + part.first_gain,
                                            .groups = {.rows = part.heads, .stride = qkv.size(2)}});
      }
    });
    values_of(dx, kv_heads * head_dim).copy_(values_of(dy, kv_heads * head_dim));
    weight.written();
    return {dx, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  // The query heads or the key heads of a token: their first element in a row of qkv, and their gains.
  struct Heads {
    int64_t heads, heads_before, offset, first_gain;
  };
  static std::array<Heads, 2> parts_of(int64_t heads, int64_t kv_heads, int64_t head_dim) {
    return {Heads{heads, 0, 0, 0}, Heads{kv_heads, heads, heads * head_dim, head_dim}};
  }
  static at::Tensor values_of(const at::Tensor& qkv, int64_t width) {
    return qkv.narrow(2, qkv.size(2) - width, width);
  }
};

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    const int64_t width = gate_up.size(-1) / 2, rows = gate_up.numel() / (2 * width);
    auto shape = gate_up.sizes().vec();
    shape.back() = width;
    const at::Tensor y = at::empty(shape, gate_up.options());
    by_element(gate_up, [&]<class T>(T) { swiglu_forward<T>(y.device(), {in<T>(gate_up), rows, width, out<T>(y)}); });
    context->save_for_backward({gate_up});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor gate_up = context->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    const int64_t width = dy.size(-1), rows = dy.numel() / width;
    const at::Tensor d_gate_up = at::empty_like(gate_up);
    by_element(dy, [&]<class T>(T) {
      swiglu_backward<T>(dy.device(), {in<T>(dy), in<T>(gate_up), rows, width, out<T>(d_gate_up)});
    });
    return {d_gate_up};
  }
};

at::Tensor plain_head_norm(const at::Tensor& qkv, const Weight& gains_2D, const AttentionShape& shape, double eps) {
  const int64_t D = shape.head_dim, H = shape.heads, K = shape.kv_heads;
  const auto dtype = wide(qkv.scalar_type());
  const auto parts = qkv.view({qkv.size(0), qkv.size(1), H + 2 * K, D}).split_with_sizes({H, K, K}, 2);
  const at::Tensor gains = use_weight(gains_2D).to(dtype);
  const auto normed = [&](const at::Tensor& x, int64_t first_gain) {
    const at::Tensor s = x.to(dtype);
    const at::Tensor y = s * at::rsqrt(s.pow(2).mean(-1, true) + eps) * gains.narrow(0, first_gain, D);
    return y.to(qkv.scalar_type());
  };
  return at::cat({normed(parts[0], 0), normed(parts[1], D), parts[2]}, 2).view(qkv.sizes());
}

at::Tensor plain_swiglu(const at::Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

// Saves its input and nothing else, so that one form serves as plain and as fused.
std::optional<at::Tensor> gelu(const std::string& function, const at::Tensor& x) {
  if (function == "gelu") return at::gelu(x);
  if (function == "gelu_tanh") return at::gelu(x, "tanh");
  return std::nullopt;
}

}  // namespace

at::Tensor plain_local(const std::string& function, const at::Tensor& x, const Weight* weight,
                       const AttentionShape& shape, double eps) {
  if (function == "swiglu") return plain_swiglu(x);
  if (function == "head_norm") return plain_head_norm(x, *weight, shape, eps);
  if (const auto y = gelu(function, x)) return *y;
  throw LogicError("there is no local operation " + function);
}

at::Tensor fused_local(const std::string& function, const at::Tensor& x, const Weight* weight,
                       const AttentionShape& shape, double eps) {
  if (function == "swiglu") return Swiglu::apply(x);
  if (function == "head_norm") {
    return HeadNorm::apply(x.contiguous(), weight->value, reinterpret_cast<int64_t>(weight), shape.heads,
                           shape.kv_heads, shape.head_dim, eps);
  }
  if (const auto y = gelu(function, x)) return *y;
  throw LogicError("there is no local operation " + function);
}

}  // namespace orthant
