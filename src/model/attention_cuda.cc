#include "model/attention_cuda.h"

#include <ATen/ATen.h>

#include <limits>

#include "base/errors.h"

namespace orthant::detail {
namespace {

bool flash(const at::Tensor& q, const std::optional<at::Tensor>& bias) {
  return !bias && (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf);
}

void check(const at::Tensor& q, const at::Tensor& k, bool causal) {
  // The kernels require rows of a multiple of 16 bytes. They disagree on the meaning of causal for tiles that are not
  // square.
  ORTHANT_CHECK(q.size(3) % 8 == 0 && q.size(1) == k.size(1) && (!causal || q.size(2) == k.size(2)), q.size(3),
                q.size(1), k.size(1), q.size(2), k.size(2));
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// The bias in the layout of the memory-efficient kernel: rows start at multiples of 16 bytes, one matrix per sequence
// and head (a view).
std::optional<at::Tensor> expanded(const std::optional<at::Tensor>& bias, const at::Tensor& q) {
  if (!bias) return std::nullopt;
  const int64_t T = bias->size(2), S = bias->size(3);
  at::Tensor rows = at::empty({1, 1, T, round_up(S, 8)}, bias->options()).narrow(3, 0, S);
  rows.copy_(*bias);
  return rows.expand({q.size(0), q.size(1), T, S});
}

}  // namespace

PartialAttention attend_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                             const std::optional<at::Tensor>& bias, double scale) {
  check(q, k, causal);
  if (flash(q, bias)) {
    const auto results = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, causal, false, scale);
    return {std::get<0>(results), std::get<1>(results)};
  }
  const auto results =
      at::_scaled_dot_product_efficient_attention(q, k, v, expanded(bias, q), true, 0.0, causal, scale);
  // The kernel pads lse to a multiple of 32 rows.
  return {std::get<0>(results), std::get<1>(results).narrow(2, 0, q.size(2))};
}

AttentionGradients attend_cuda_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, bool causal,
                                        const std::optional<at::Tensor>& bias, double scale) {
  check(q, k, causal);
  const at::Tensor result = out.to(q.scalar_type()), none;
  const at::Tensor no_dropout = at::zeros({2}, q.options().dtype(at::kLong));
  if (flash(q, bias)) {
    auto [dq, dk, dv] =
        at::_scaled_dot_product_flash_attention_backward(dout, q, k, v, result, lse.contiguous(), none, none, q.size(2),
                                                         k.size(2), 0.0, causal, no_dropout, no_dropout, scale);
    return {dq, dk, dv};
  }
  // Padding rows get lse = infinity, so that their probabilities are 0.
  constexpr double kNothing = std::numeric_limits<double>::infinity();
  const at::Tensor blocks = at::constant_pad_nd(lse, {0, round_up(lse.size(2), 32) - lse.size(2)}, kNothing);
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      dout, q, k, v, expanded(bias, q).value_or(none), result, blocks, no_dropout[0], no_dropout[1], 0.0,
      {true, true, true, false}, causal, scale);
  return {dq, dk, dv};
}

}  // namespace orthant::detail
