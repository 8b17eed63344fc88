// The reference implementation of every primitive: plain ATen operators, differentiated by autograd; short rather than
// fast.
#include "base/labels.h"
#include "model/dropout.h"
#include "model/element.h"
#include "model/local_operations.h"
#include "model/loss.h"
#include "model/norms.h"
#include "model/primitives.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orthant {
namespace plain {
namespace {

at::Tensor embedding(const at::Tensor& tokens_BT, const Weight& table_VC) {
  return use_weight(table_VC).index({tokens_BT});
}

at::Tensor add_positions(const at::Tensor& x_BTC, const Microbatch& batch, const Weight& table_PC) {
  return x_BTC + use_weight(table_PC).index({batch.positions_BT});
}

at::Tensor plain_linear(const at::Tensor& x, const Weight& weight) {
  const at::Tensor product = at::matmul(x, use_weight(weight).t());
  return weight.bias == nullptr ? product : product + use_weight(*weight.bias);
}

// By autograd, which needs the product although nothing reads it.
at::Tensor plain_linear_backward(const at::Tensor& x, const Weight& weight, const at::Tensor& dy) {
  const at::AutoGradMode with_grad(true);
  const at::Tensor input = x.detach().requires_grad_(true);
  torch::autograd::backward({plain_linear(input, weight)}, {dy});
  return input.grad();
}

// Rotates pairs of channels: channel k is paired with channel k + D/2.
at::Tensor rotate(const at::Tensor& x_BTHD, const at::Tensor& cos_BT1D, const at::Tensor& sin_BT1D) {
  const auto halves = x_BTHD.chunk(2, -1);
  return at::cat({halves[0] * cos_BT1D - halves[1] * sin_BT1D, halves[1] * cos_BT1D + halves[0] * sin_BT1D}, -1);
}

// True for every key hidden from a query: [sequences or 1, 1, T, T].
at::Tensor hidden_pairs(const Microbatch& batch, const VisibilityRule& rule, int64_t T, const at::Device& device) {
  std::vector<int64_t> positions(static_cast<size_t>(T));
  std::iota(positions.begin(), positions.end(), 0);
  const Visibility seen = visibility(batch, rule, positions);
  at::Tensor hidden = at::ones({seen.sequences, 1, T, T}, at::kBool);
  bool* row = hidden.mutable_data_ptr<bool>();
  for (size_t i = 0; i < seen.first.size(); ++i, row += T) std::fill(row + seen.first[i], row + seen.end[i], false);
  return hidden.to(device);
}

at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, const ScoreRule& rule) {
  return apply_softcap(at::matmul(q, k.transpose(-1, -2)) * rule.scale, rule.softcap);
}

at::Tensor attention(const at::Tensor& qkv, const Microbatch& batch, const AttentionShape& shape) {
  const int64_t B = qkv.size(0), T = qkv.size(1), H = shape.heads, K = shape.kv_heads, D = shape.head_dim;
  const auto dtype = wide(qkv.scalar_type());
  const auto parts = qkv.view({B, T, H + 2 * K, D}).to(dtype).split_with_sizes({H, K, K}, 2);
  const auto turned = [&](const at::Tensor& x_BTHD) {
    if (!shape.cos_PD.defined()) return x_BTHD;
    const auto angles = [&](const at::Tensor& of) { return of.index({batch.positions_BT}).unsqueeze(2).to(dtype); };
    return rotate(x_BTHD, angles(shape.cos_PD), angles(shape.sin_PD));
  };
  const at::Tensor q = turned(parts[0]).transpose(1, 2);
  if (shape.linformer_k) {
    at::Tensor present = at::ones({1, T, 1, 1}, q.options());  // padding enters no summary
    if (batch.packing && !batch.packing->lengths.empty()) {
      const auto numbers = q.options().dtype(at::kLong);
      present = at::arange(T, numbers)
                    .view({1, T, 1, 1})
                    .lt(at::tensor(batch.packing->lengths, numbers).view({B, 1, 1, 1}))
                    .to(dtype);
    }
    const auto summary = [&](const at::Tensor& x_BTKD, const Weight& projection) {
      return at::einsum("btkd,tp->bkpd", {x_BTKD * present, use_weight(projection).to(dtype)})
          .repeat_interleave(H / K, 1);
    };
    const at::Tensor keys = summary(turned(parts[1]), *shape.linformer_k);
    const at::Tensor scores = scores_of(q, keys, shape.scores());
    const at::Tensor seen = at::matmul(scores.softmax(-1), summary(parts[2], *shape.linformer_v));
    return seen.transpose(1, 2).reshape({B, T, H * D}).to(qkv.scalar_type());
  }
  const at::Tensor k = turned(parts[1]).transpose(1, 2).repeat_interleave(H / K, 1);
  const at::Tensor v = parts[2].transpose(1, 2).repeat_interleave(H / K, 1);
  const at::Tensor hidden = hidden_pairs(batch, shape.rule, T, qkv.device());
  const at::Tensor nothing = hidden.all(-1, true);  // queries without visible keys; their output is 0
  const at::Tensor scores = scores_of(q, k, shape.scores()).masked_fill(hidden & nothing.logical_not(), -INFINITY);
  const at::Tensor seen = at::matmul(scores.softmax(-1).masked_fill(nothing, 0.0), v);
  return seen.transpose(1, 2).reshape({B, T, H * D}).to(qkv.scalar_type());
}

at::Tensor drop(const at::Tensor& x_BTC, const Microbatch& batch, const DropoutKey& key) {
  return key.probability == 0 ? x_BTC : x_BTC * apply_dropout_mask(at::ones_like(x_BTC), batch, key);
}

at::Tensor cross_entropy(const at::Tensor& x_BTC, const Weight& head_VC, const Microbatch& batch,
                         const OutputLoss& loss) {
  const at::Tensor product = plain_linear(x_BTC, head_VC).flatten(0, 1).to(wide(x_BTC.scalar_type()));
  const at::Tensor logits = apply_softcap(product, loss.softcap), logs = logits.log_softmax(-1);
  const at::Tensor labels = batch.labels_BT.flatten();
  const at::Tensor valid = labels.ge(0);
  at::Tensor losses = logs.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1).mul(loss.smoothing - 1);
  if (loss.smoothing > 0) losses = losses - loss.smoothing * logs.mean(-1);
  if (loss.z_weight > 0) losses = losses + loss.z_weight * logits.logsumexp(-1).square();
  return (losses * valid).to(at::kDouble).sum() * batch.loss_scale;
}

at::Tensor logits(const at::Tensor& x_BTC, const Weight& head_VC, const Microbatch& batch) {
  return plain_linear(labeled_rows(x_BTC, batch.labels_BT), head_VC);
}

}  // namespace
}  // namespace plain

at::Tensor labeled_rows(const at::Tensor& x_BTC, const at::Tensor& labels_BT) {
  return x_BTC.flatten(0, -2).index_select(0, labels_BT.flatten().ne(kIgnoredLabel).nonzero().squeeze(1));
}

Visibility visibility(const Microbatch& batch, const VisibilityRule& rule, std::span<const int64_t> positions) {
  if (!batch.packing) return compute_visibility(rule, positions, batch.sequence_length);
  return compute_visibility(rule, positions, batch.sequence_length, batch.packing->document_starts,
                            batch.packing->lengths);
}

Primitives plain_primitives() {
  return {.embedding = plain::embedding,
          .add_positions = plain::add_positions,
          .add_norm = plain_add_norm,
          .linear = plain::plain_linear,
          .linear_backward = plain::plain_linear_backward,
          .attention = plain::attention,
          .local = plain_local,
          .dropout = plain::drop,
          .cross_entropy = plain::cross_entropy,
          .logits = plain::logits};
}

}  // namespace orthant
