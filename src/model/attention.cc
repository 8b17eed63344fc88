// Runs attention tile by tile: on the CPU with ATen's flash kernel, on CUDA with attend_cuda(), and by definition where
// these have no kernel.
#include "model/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "base/errors.h"
#include "model/architecture.h"
#include "model/attention_cuda.h"
#include "model/cuda_device.h"
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
    return copy_to_device(mask.to(options.dtype().toScalarType()), options.device()).unsqueeze(0).unsqueeze(0);
  }
};

// True if the definition must run: on request, for capped scores, or for float64 on CUDA, whose kernels lack it.
bool by_definition(AttentionKernel kernel, const at::Tensor& q, const ScoreRule& rule) {
  return kernel == AttentionKernel::plain || rule.softcap > 0 || (q.is_cuda() && q.scalar_type() == at::kDouble);
}

// attend_cuda() takes key heads that several query heads share. The other kernels need one for each query head.
bool takes_shared_key_heads(AttentionKernel kernel, const at::Tensor& q, const ScoreRule& rule) {
  return q.is_cuda() && !by_definition(kernel, q, rule);
}

at::Tensor for_kernel(AttentionKernel kernel, const at::Tensor& q, const at::Tensor& kv_BKSD, const ScoreRule& rule) {
  return takes_shared_key_heads(kernel, q, rule) ? kv_BKSD : detail::per_query_head(kv_BKSD, q.size(1));
}

// Attention of one tile by its definition, for one block of queries after the other.
class AttentionByDefinition {
 public:
  AttentionByDefinition(AttentionKernel kernel, const AttentionTile& tile, const at::Tensor& k, const at::Tensor& v,
                        const ScoreRule& rule)
      : tile_(tile),
        rule_(rule),
        type_(kernel == AttentionKernel::plain ? at::kDouble : wide(k.scalar_type())),
        k_(k.to(type_)),
        v_(v.to(type_)) {
    if (tile.kind != AttentionTile::causal) bias_ = Cut{tile}.bias(k_.options());
  }

  PartialAttention forward(const at::Tensor& q) const {
    PartialAttention all{at::empty(q.sizes(), k_.options()), at::empty(q.sizes().slice(0, 3), k_.options())};
    for_each_block(q, [&](const Block& block) {
      const at::Tensor p = hidden(block, block.scores(q));
      const at::Tensor most = p.amax(-1, true);
      const at::Tensor sum = p.sub_(most).exp_().sum(-1, true);
      block.rows(all.out_BHTD).copy_(product(p, block.keys(v_)).div_(sum));
      block.rows(all.lse_BHT).copy_(sum.log().add_(most).squeeze(-1));
    });
    return all;
  }

  AttentionGradients backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& out,
                              const at::Tensor& lse) const {
    AttentionGradients all{at::empty(q.sizes(), k_.options()), at::zeros(k_.sizes(), k_.options()),
                           at::zeros(v_.sizes(), v_.options())};
    for_each_block(q, [&](const Block& block) {
      const at::Tensor dout_rows = block.rows(dout).to(type_);
      at::Tensor scores = block.scores(q);
      // The slope of a score by scale q k: 1 - (score / c)^2 with a cap c.
      const at::Tensor slope = rule_.softcap > 0 ? scores.div(rule_.softcap).square_().neg_().add_(1) : at::Tensor();
      const at::Tensor p = hidden(block, scores).sub_(block.rows(lse).to(type_).unsqueeze(-1)).exp_();
      add_product(block.keys(all.dv_BKSD), p.transpose(-1, -2), dout_rows);
      const at::Tensor delta = (dout_rows * block.rows(out).to(type_)).sum(-1, true);
      const at::Tensor ds = product(dout_rows, block.keys(v_).transpose(-1, -2)).sub_(delta).mul_(p);
      if (slope.defined()) ds.mul_(slope);
      ds.mul_(rule_.scale);
      block.rows(all.dq_BHTD).copy_(product(ds, block.keys(k_)));
      add_product(block.keys(all.dk_BKSD), ds.transpose(-1, -2), block.rows(q).to(type_));
    });
    return all;
  }

 private:
  // Queries [begin, end) of the tile, which see no key from `end_key` on.
  struct Block {
    const AttentionByDefinition& of;
    int64_t begin, end, end_key;

    at::Tensor rows(const at::Tensor& t) const { return t.narrow(2, begin, end - begin); }
    at::Tensor keys(const at::Tensor& t) const { return t.narrow(2, 0, end_key); }
    at::Tensor scores(const at::Tensor& q) const {
      at::Tensor products = product(rows(q).to(of.type_), keys(of.k_).transpose(-1, -2));
      const double cap = of.rule_.softcap;
      return cap > 0 ? products.mul_(of.rule_.scale / cap).tanh_().mul_(cap) : products.mul_(of.rule_.scale);
    }
  };

  template <class Function>
  void for_each_block(const at::Tensor& q, const Function& function) const {
    const int64_t queries = q.size(2), keys = k_.size(2),
                  rows = capped_score_rows(q.size(0) * q.size(1), keys, q.is_cuda());
    for (int64_t begin = 0; begin < queries; begin += rows) {
      const int64_t end = std::min(queries, begin + rows);
      function(Block{*this, begin, end, tile_.kind == AttentionTile::causal ? end : keys});
    }
  }

  // Sets the scores of hidden keys to -inf, in place.
  at::Tensor hidden(const Block& block, at::Tensor scores) const {
    if (tile_.kind == AttentionTile::causal) {
      const at::Tensor all = at::ones({block.end - block.begin, block.end_key}, scores.options().dtype(at::kBool));
      scores.masked_fill_(all.triu_(block.begin + 1), kMinusInfinity);
    } else if (bias_) {
      scores.add_(block.rows(*bias_));
    }
    return scores;
  }

  // a b, for [B,H,.,.] each. at::matmul would copy operands that are slices; products of each sequence do not.
  static at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor result = at::empty({a.size(0), a.size(1), a.size(2), b.size(3)}, a.options());
    for (int64_t sequence = 0; sequence < a.size(0); ++sequence) {
      at::Tensor of_sequence = result[sequence];
      at::bmm_out(of_sequence, a[sequence], b[sequence]);
    }
    return result;
  }
  // sum += a b.
  static void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
    for (int64_t sequence = 0; sequence < sum.size(0); ++sequence) sum[sequence].baddbmm_(a[sequence], b[sequence]);
  }

  const AttentionTile& tile_;
  const ScoreRule& rule_;
  at::ScalarType type_;
  at::Tensor k_, v_;
  std::optional<at::Tensor> bias_;  // -inf for hidden keys; none for causal tiles, and if all keys are seen
};

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
                        const std::vector<AttentionTile>& tiles, const ScoreRule& rule) {
  check_heads(q, k, v);
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), D = q.size(3);
  const at::Tensor keys = for_kernel(kernel, q, k, rule), values = for_kernel(kernel, q, v, rule);
  const auto run = [&](const AttentionTile& tile) -> PartialAttention {
    const Cut cut{tile};
    if (by_definition(kernel, q, rule)) {
      return AttentionByDefinition(kernel, tile, cut.keys(keys), cut.keys(values), rule).forward(cut.queries(q));
    }
    const bool causal = tile.kind == AttentionTile::causal;
    const auto bias = cut.bias(q.options());
    if (q.is_cuda()) {
      return detail::attend_cuda(cut.queries(q), cut.keys(keys), cut.keys(values), causal, bias, rule.scale);
    }
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(cut.queries(q), cut.keys(keys), cut.keys(values),
                                                                      0.0, causal, bias, rule.scale);
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
                                     const at::Tensor& lse, const std::vector<AttentionTile>& tiles,
                                     const ScoreRule& rule, int64_t key_heads, at::ScalarType type) {
  check_heads(q, k, v);
  const at::Tensor keys = for_kernel(kernel, q, k, rule), values = for_kernel(kernel, q, v, rule);
  const auto run = [&](const AttentionTile& tile) -> AttentionGradients {
    const Cut cut{tile};
    if (by_definition(kernel, q, rule)) {
      return AttentionByDefinition(kernel, tile, cut.keys(keys), cut.keys(values), rule)
          .backward(cut.queries(dout), cut.queries(q), cut.queries(out), cut.queries(lse));
    }
    const bool causal = tile.kind == AttentionTile::causal;
    const auto bias = cut.bias(q.options());
    if (q.is_cuda()) {
      return detail::attend_cuda_backward(cut.queries(dout), cut.queries(q), cut.keys(keys), cut.keys(values),
                                          cut.queries(out), cut.queries(lse), causal, bias, rule.scale);
    }
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        cut.queries(dout), cut.queries(q), cut.keys(keys), cut.keys(values), cut.queries(out), cut.queries(lse), 0.0,
        causal, bias, rule.scale);
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
                                   const at::Tensor& lse, const std::vector<AttentionTile>& tiles,
                                   const ScoreRule& rule) {
  return backward_of_tiles(kernel, dout, q, k, v, out, lse, tiles, rule, k.size(1), wide(q.scalar_type()));
}

AttentionGradients attend_backward_single_block(AttentionKernel kernel, const at::Tensor& dout, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                                const at::Tensor& lse, const std::vector<AttentionTile>& tiles,
                                                const ScoreRule& rule) {
  const int64_t heads = takes_shared_key_heads(kernel, q, rule) ? k.size(1) : q.size(1);
  return backward_of_tiles(kernel, dout, q, k, v, out, lse, tiles, rule, heads, q.scalar_type());
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
