// Attention and its gradients by definition: float64, autograd, and a mask of all query-key pairs. The oracle shares no
// code with the kernels.
#pragma once

#include <ATen/ATen.h>

#include <array>

#include "model/attention.h"
#include "tests/support/reference_values.h"

namespace orthant {

/// Shapes: q and dout [B,H,T,D], k and v [B,K,S,D].
struct AttentionInputs {
  at::Tensor q, k, v, dout;
  double scale = 0.5, softcap = 0;
  ScoreRule rule() const { return {scale, softcap}; }
};

inline AttentionInputs attention_inputs(int64_t B, int64_t H, int64_t K, int64_t L, int64_t D,
                                        at::ScalarType type = at::kDouble) {
  return {reference_values({B, H, L, D}, 1).to(type), reference_values({B, K, L, D}, 2).to(type),
          reference_values({B, K, L, D}, 3).to(type), reference_values({B, H, L, D}, 4).to(type)};
}

/// Returns the output, the log-sum-exp, and the gradients of q, k and v. A query that attends to no key has output 0
/// and log-sum-exp -inf.
inline std::array<at::Tensor, 5> dense_attention(const AttentionInputs& in, const Visibility& v) {
  auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().clone().set_requires_grad(true); };
  const at::Tensor q = leaf(in.q), k = leaf(in.k), value = leaf(in.v);
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), S = k.size(2), repeats = H / k.size(1);
  at::Tensor hidden = at::ones({B, 1, L, S}, at::kBool);
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t < L; ++t) {
      const auto i = static_cast<size_t>((v.sequences == 1 ? 0 : b) * L + t);
      hidden[b][0][t].slice(0, v.first[i], v.end[i]).fill_(false);
    }
  }
  const at::Tensor nothing = hidden.all(-1, true);
  at::Tensor scores = at::matmul(q, k.repeat_interleave(repeats, 1).transpose(-1, -2)) * in.scale;
  if (in.softcap > 0) scores = (scores / in.softcap).tanh() * in.softcap;
  const at::Tensor lse = scores.masked_fill(hidden, -INFINITY).logsumexp(-1);
  scores = scores.masked_fill(hidden & ~nothing, -INFINITY);
  const at::Tensor p = scores.softmax(-1).masked_fill(nothing, 0.0);
  const at::Tensor out = at::matmul(p, value.repeat_interleave(repeats, 1));
  out.backward(in.dout.to(at::kDouble));
  return {out.detach(), lse.detach(), q.grad(), k.grad(), value.grad()};
}

}  // namespace orthant
