// Runs attention tile by tile: on the CPU with ATen's flash kernel, on CUDA with attend_cuda(), and in float64 by
// definition.
#include "model/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "base/errors.h"
#include "model/attention_cuda.h"
#include "model/element.h"

namespace orthant {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Slices tensors whose dim 2 holds queries or keys to the rows of a tile.
struct Cut {
  const AttentionTile& tile;

  at::Tensor sequence(const at::Tensor& t) const { return tile.sequence < 0 ? t : t.narrow(0, tile.sequence, 1); }
  at::Tensor queries(const at::Tensor& t) const {
    return sequence(t).narrow(2, tile.query_begin, tile.queries());
  }
  at::Tensor keys(const at::Tensor& t) const { return sequence(t).narrow(2, tile.key_begin, tile.keys()); }

  // An additive mask [1, 1, queries, keys]: 0 for visible keys, -inf for hidden ones. Only masked tiles have one.
  std::optional<at::Tensor> bias(const at::TensorOptions& options) const {
    if (tile.kind != AttentionTile::masked) return std::nullopt;
    const at::Tensor mask = at::full({tile.queries(), tile.keys()}, kMinusInfinity, at::kFloat);
    auto* row = mask.mutable_data_ptr<float>();
    for (size_t q = 0; q < tile.visible_begin.size(); ++q, row += tile.keys()) {
      std::fill(row + tile.visible_begin[q], row + tile.visible_end[q], 0.0F);
    }
    return mask.to(options.device(), options.dtype().toScalarType()).unsqueeze(0).unsqueeze(0);
  }
};

// The scores of a tile, by definition; -inf for hidden keys.
at::Tensor scores_of(const Cut& cut, const at::Tensor& q, const at::Tensor& k, double scale) {
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * scale;
  if (cut.tile.kind == AttentionTile::causal) {
    scores = scores.masked_fill(at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(1), kMinusInfinity);
  } else if (const auto bias = cut.bias(q.options())) {
    scores = scores + *bias;
  }
  return scores;
}

// True if the float64 definition must run: on request, or for float64 on CUDA, whose kernels lack it.
bool plain(AttentionKernel kernel, const at::Tensor& q) {
  return kernel == AttentionKernel::plain || (q.is_cuda() && q.scalar_type() == at::kDouble);
}

// attend_cuda() takes key heads that several query heads share. The other kernels need one for each query head.
bool takes_shared_key_heads(AttentionKernel kernel, const at::Tensor& q) { return q.is_cuda() && !plain(kernel, q); }

at::Tensor for_kernel(AttentionKernel kernel, const at::Tensor& q, const at::Tensor& kv_BKSD) {
  return takes_shared_key_heads(kernel, q) ? kv_BKSD : detail::per_query_head(kv_BKSD, q.size(1));
}

PartialAttention plain_forward(const Cut& cut, const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                               double scale) {
  const at::Tensor q = q_in.to(at::kDouble), k = k_in.to(at::kDouble), v = v_in.to(at::kDouble);
  const at::Tensor scores = scores_of(cut, q, k, scale);
  return {at::matmul(scores.softmax(-1), v), scores.logsumexp(-1)};
}

AttentionGradients plain_backward(const Cut& cut, const at::Tensor& dout_in, const at::Tensor& q_in,
                                  const at::Tensor& k_in, const at::Tensor& v_in, const at::Tensor& out_in,
                                  const at::Tensor& lse_in, double scale) {
  const at::Tensor dout = dout_in.to(at::kDouble), q = q_in.to(at::kDouble), k = k_in.to(at::kDouble);
  const at::Tensor v = v_in.to(at::kDouble), out = out_in.to(at::kDouble), lse = lse_in.to(at::kDouble);
  const at::Tensor p = (scores_of(cut, q, k, scale) - lse.unsqueeze(-1)).exp();
  const at::Tensor delta = (dout * out).sum(-1, true);
  const at::Tensor ds = p * (at::matmul(dout, v.transpose(-1, -2)) - delta) * scale;
  return {at::matmul(ds, k), at::matmul(ds.transpose(-1, -2), q), at::matmul(p.transpose(-1, -2), dout)};
}

// Sums over the query heads that share a key head.
at::Tensor per_key_head(const at::Tensor& d_BHSD, int64_t key_heads, at::ScalarType dtype) {
  const int64_t B = d_BHSD.size(0), H = d_BHSD.size(1), S = d_BHSD.size(2), D = d_BHSD.size(3);
  if (H == key_heads) return d_BHSD.to(dtype);
  return at::sum(d_BHSD.reshape({B, key_heads, H / key_heads, S, D}), {2}, false, dtype);
}

void check_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  // With other shapes, ATen's kernel would read past the end of the keys.
  ORTHANT_CHECK(
      q.size(1) % k.size(1) == 0 && k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
      q.size(0), q.size(1), q.size(3), k.size(0), k.size(1), k.size(3));
}

}  // namespace

at::Tensor detail::per_query_head(const at::Tensor& kv_BKSD, int64_t heads) {
  const int64_t B = kv_BKSD.size(0), K = kv_BKSD.size(1), S = kv_BKSD.size(2), D = kv_BKSD.size(3);
  if (K == heads) return kv_BKSD;
  return kv_BKSD.unsqueeze(2).expand({B, K, heads / K, S, D}).reshape({B, heads, S, D});
}

PartialAttention attend(AttentionKernel kernel, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const std::vector<AttentionTile>& tiles, double scale) {
  check_heads(q, k, v);
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), D = q.size(3);
  const at::Tensor keys = for_kernel(kernel, q, k), values = for_kernel(kernel, q, v);
  const auto run = [&](const AttentionTile& tile) -> PartialAttention {
    const Cut cut{tile};
    if (plain(kernel, q)) return plain_forward(cut, cut.queries(q), cut.keys(keys), cut.keys(values), scale);
    const bool causal = tile.kind == AttentionTile::causal;
    const auto bias = cut.bias(q.options());
    if (q.is_cuda()) return detail::attend_cuda(cut.queries(q), cut.keys(keys), cut.keys(values), causal, bias, scale);
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(cut.queries(q), cut.keys(keys), cut.keys(values),
                                                                      0.0, causal, bias, scale);
    return {out, lse};
  };
  if (tiles.size() == 1 && tiles[0].sequence < 0 && tiles[0].queries() == T) {
    const PartialAttention all = run(tiles[0]);
    return {all.out_BHTD.to(q.scalar_type()), all.lse_BHT.to(wide(q.scalar_type()))};
  }
  // The memory order is [B,T,H,D], so that the heads of a token are adjacent.
  PartialAttention all{at::zeros({B, T, H, D}, q.options()).transpose(1, 2),
                       at::full({B, H, T}, kMinusInfinity, q.options().dtype(wide(q.scalar_type())))};
  for (const AttentionTile& tile : tiles) {
    const PartialAttention part = run(tile);
    Cut{tile}.queries(all.out_BHTD).copy_(part.out_BHTD);
    Cut{tile}.queries(all.lse_BHT).copy_(part.lse_BHT);
  }
  return all;
}

namespace {

AttentionGradients backward_of_tiles(AttentionKernel kernel, const at::Tensor& dout, const at::Tensor& q,
                                     const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                     const at::Tensor& lse, const std::vector<AttentionTile>& tiles, double scale,
                                     int64_t key_heads, at::ScalarType type) {
  check_heads(q, k, v);
  const at::Tensor keys = for_kernel(kernel, q, k), values = for_kernel(kernel, q, v);
  const auto run = [&](const AttentionTile& tile) -> AttentionGradients {
    const Cut cut{tile};
    if (plain(kernel, q)) {
      return plain_backward(cut, cut.queries(dout), cut.queries(q), cut.keys(keys), cut.keys(values), cut.queries(out),
                            cut.queries(lse), scale);
    }
    const bool causal = tile.kind == AttentionTile::causal;
    const auto bias = cut.bias(q.options());
    if (q.is_cuda()) {
      return detail::attend_cuda_backward(cut.queries(dout), cut.queries(q), cut.keys(keys), cut.keys(values),
                                          cut.queries(out), cut.queries(lse), causal, bias, scale);
    }
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        cut.queries(dout), cut.queries(q), cut.keys(keys), cut.keys(values), cut.queries(out), cut.queries(lse), 0.0,
        causal, bias, scale);
    return {dq, dk, dv};
  };
  if (tiles.size() == 1 && tiles[0].sequence < 0 && tiles[0].queries() == q.size(2) && tiles[0].keys() == k.size(2)) {
    const AttentionGradients all = run(tiles[0]);
    return {all.dq_BHTD.to(type), per_key_head(all.dk_BKSD, key_heads, type),
            per_key_head(all.dv_BKSD, key_heads, type)};
  }
  const auto sums = q.options().dtype(wide(q.scalar_type()));
  auto of_keys = k.sizes().vec();
  of_keys[1] = key_heads;
  AttentionGradients all{at::zeros(q.sizes(), sums), at::zeros(of_keys, sums), at::zeros(of_keys, sums)};
  for (const AttentionTile& tile : tiles) {
    const Cut cut{tile};
    const AttentionGradients part = run(tile);
    cut.queries(all.dq_BHTD).copy_(part.dq_BHTD);
    cut.keys(all.dk_BKSD).add_(per_key_head(part.dk_BKSD, key_heads, sums.dtype().toScalarType()));
    cut.keys(all.dv_BKSD).add_(per_key_head(part.dv_BKSD, key_heads, sums.dtype().toScalarType()));
  }
  return {all.dq_BHTD.to(type), all.dk_BKSD.to(type), all.dv_BKSD.to(type)};
}

}  // namespace

AttentionGradients attend_backward(AttentionKernel kernel, const at::Tensor& dout, const at::Tensor& q,
                                   const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                   const at::Tensor& lse, const std::vector<AttentionTile>& tiles, double scale) {
  return backward_of_tiles(kernel, dout, q, k, v, out, lse, tiles, scale, k.size(1), wide(q.scalar_type()));
}

AttentionGradients attend_backward_single_block(AttentionKernel kernel, const at::Tensor& dout, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                                const at::Tensor& lse, const std::vector<AttentionTile>& tiles,
                                                double scale) {
  const int64_t heads = takes_shared_key_heads(kernel, q) ? k.size(1) : q.size(1);
  return backward_of_tiles(kernel, dout, q, k, v, out, lse, tiles, scale, heads, q.scalar_type());
}

void merge_partial_attention(PartialAttention& sum, const PartialAttention& block) {
  const at::Tensor difference = block.lse_BHT - sum.lse_BHT;
  // If both are -inf, no key was visible so far and none is in the block: the difference is NaN and the weight must be
  // 0.
  const at::Tensor weight = difference.sigmoid().masked_fill_(block.lse_BHT == kMinusInfinity, 0.0);
  sum.out_BHTD.add_((block.out_BHTD - sum.out_BHTD).mul_(weight.unsqueeze(-1)));
  sum.lse_BHT = at::logaddexp(sum.lse_BHT, block.lse_BHT);
}

}  // namespace orthant
