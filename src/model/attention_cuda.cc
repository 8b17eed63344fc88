#include "model/attention_cuda.h"

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <limits>

#include "base/errors.h"

namespace orthant::detail {
namespace {

enum class Kernel { cudnn, flash, efficient };

// cuDNN has 1.3 to 2.3 times the rate of ATen's flash kernels on H100 (benchmarks/gpu/RESULTS.md) and takes key heads
// that several query heads share.
Kernel kernel_for(const at::Tensor& q, const at::Tensor& k, const std::optional<at::Tensor>& bias) {
  if (bias || (q.scalar_type() != at::kBFloat16 && q.scalar_type() != at::kHalf)) return Kernel::efficient;
  const bool fits_cudnn = q.size(3) <= 128 && k.size(2) > 1;
  return fits_cudnn && at::detail::getCUDAHooks().hasCuDNN() ? Kernel::cudnn : Kernel::flash;
}

void check(const at::Tensor& q, const at::Tensor& k, bool causal) {
  // The kernels require rows of a multiple of 16 bytes. They disagree on the meaning of causal for tiles that are not
  // square.
  ORTHANT_CHECK(q.size(3) % 8 == 0 && q.size(1) % k.size(1) == 0 && (!causal || q.size(2) == k.size(2)), q.size(3),
                q.size(1), k.size(1), q.size(2), k.size(2));
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Sums over the query heads that share a key head.
at::Tensor per_key_head(const at::Tensor& d_BHSD, int64_t heads) {
  return d_BHSD.size(1) == heads ? d_BHSD : d_BHSD.unflatten(1, {heads, -1}).sum(2);
}

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
  const Kernel kernel = kernel_for(q, k, bias);
  if (kernel == Kernel::cudnn) {
    const auto results =
        at::_scaled_dot_product_cudnn_attention(q, k, v, std::nullopt, true, 0.0, causal, false, scale);
    return {std::get<0>(results), std::get<1>(results).view({q.size(0), q.size(1), q.size(2)})};
  }
  const at::Tensor keys = per_query_head(k, q.size(1)), values = per_query_head(v, q.size(1));
  if (kernel == Kernel::flash) {
    const auto results = at::_scaled_dot_product_flash_attention(q, keys, values, 0.0, causal, false, scale);
    return {std::get<0>(results), std::get<1>(results)};
  }
  const auto results =
      at::_scaled_dot_product_efficient_attention(q, keys, values, expanded(bias, q), true, 0.0, causal, scale);
  // The kernel pads lse to a multiple of 32 rows.
  return {std::get<0>(results), std::get<1>(results).narrow(2, 0, q.size(2))};
}

AttentionGradients attend_cuda_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, bool causal,
                                        const std::optional<at::Tensor>& bias, double scale) {
  check(q, k, causal);
  const Kernel kernel = kernel_for(q, k, bias);
  const at::Tensor result = out.to(q.scalar_type()), none;
  const at::Tensor no_dropout = at::zeros({2}, q.options().dtype(at::kLong));
  const int64_t queries = q.size(2), key_heads = k.size(1);
  if (kernel == Kernel::cudnn) {
    auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        dout, q, k, v, result, lse.contiguous().unsqueeze(-1), no_dropout[0], no_dropout[1], none, none, none, queries,
        k.size(2), 0.0, causal, scale);
    return {dq, dk, dv};
  }
  const at::Tensor keys = per_query_head(k, q.size(1)), values = per_query_head(v, q.size(1));
  const auto answer = [&](const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv) -> AttentionGradients {
    return {dq, per_key_head(dk, key_heads), per_key_head(dv, key_heads)};
  };
  if (kernel == Kernel::flash) {
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
        dout, q, keys, values, result, lse.contiguous(), none, none, queries, k.size(2), 0.0, causal, no_dropout,
        no_dropout, scale);
    return answer(dq, dk, dv);
  }
  // Padding rows get lse = infinity, so that their probabilities are 0.
  constexpr double kNothing = std::numeric_limits<double>::infinity();
  const at::Tensor blocks = at::constant_pad_nd(lse, {0, round_up(queries, 32) - queries}, kNothing);
  const auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      dout, q, keys, values, expanded(bias, q).value_or(none), result, blocks, no_dropout[0], no_dropout[1], 0.0,
      {true, true, true, false}, causal, scale);
  return answer(dq, dk, dv);
}

}  // namespace orthant::detail
