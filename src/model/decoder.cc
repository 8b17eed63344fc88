#include "model/decoder.h"

#include "base/errors.h"
#include "base/philox.h"
#include "model/element.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orthant {
namespace {

// Rotates [heads, T, D] by tables [T, D/2]: element k is paired with element k + D/2.
at::Tensor rotate(const at::Tensor& x_HTD, const at::Tensor& cos_TD, const at::Tensor& sin_TD) {
  const auto halves = x_HTD.chunk(2, -1);
  return at::cat({halves[0] * cos_TD - halves[1] * sin_TD, halves[1] * cos_TD + halves[0] * sin_TD}, -1);
}

void require_positions(int64_t positions, int64_t tokens) {
  if (tokens <= positions) return;
  throw ConfigError(
      fmt::format("{} tokens are more than the model's max_position_embeddings = {}; shorten the prompt "
                  "or make fewer tokens",
                  tokens, positions));
}

}  // namespace

Decoder::Decoder(const Transformer& model) : model_(model), caches_(model.blocks_.size()) {}

at::Tensor Decoder::attend(size_t layer, const at::Tensor& qkv_BTE) {
  const AttentionShape& shape = model_.attention_;
  Cache& cache = caches_[layer];
  const int64_t before = cache.length, T = qkv_BTE.size(1), D = shape.head_dim;
  // The heads may be sharded: the number of shards, of which this rank holds one.
  const int64_t shares = (shape.heads + 2 * shape.kv_heads) * D / qkv_BTE.size(2);
  const int64_t H = shape.heads / shares, K = shape.kv_heads / shares;
  const auto dtype = wide(qkv_BTE.scalar_type());
  const auto parts = qkv_BTE.view({T, H + 2 * K, D}).transpose(0, 1).split_with_sizes({H, K, K}, 0);
  const at::Tensor cos = shape.cos_PD.narrow(0, before, T), sin = shape.sin_PD.narrow(0, before, T);
  const at::Tensor q = rotate(parts[0].to(dtype), cos, sin);
  const at::Tensor k = rotate(parts[1].to(dtype), cos, sin).to(qkv_BTE.scalar_type());

  // The capacity doubles, so that a text of n tokens copies only O(n) keys.
  auto append = [&](at::Tensor& kept, const at::Tensor& fresh) {
    if (!kept.defined() || kept.size(1) < before + T) {
      const int64_t most = model_.architecture_.max_position_embeddings;
      at::Tensor larger = at::empty({K, std::min(most, std::max<int64_t>(64, 2 * (before + T))), D}, fresh.options());
      if (kept.defined()) larger.narrow(1, 0, before).copy_(kept.narrow(1, 0, before));
      kept = larger;
    }
    kept.narrow(1, before, T).copy_(fresh);
    return kept.narrow(1, 0, before + T).to(dtype).repeat_interleave(H / K, 0);
  };
  const at::Tensor keys = append(cache.keys, k), values = append(cache.values, parts[2]);
  cache.length += T;
  at::Tensor scores = at::matmul(q, keys.transpose(-1, -2)) / std::sqrt(static_cast<double>(D));
  const int64_t window = shape.rule.sliding_window;
  if (T > 1 || (window > 0 && before + T > window)) {
    at::Tensor hidden = at::ones({T, before + T}, at::kBool).triu(before + 1);
    if (window > 0) hidden = hidden.logical_or(at::ones({T, before + T}, at::kBool).tril(before - window));
    scores = scores.masked_fill(hidden, -INFINITY);
  }
  return at::matmul(scores.softmax(-1), values).transpose(0, 1).reshape({1, T, H * D}).to(qkv_BTE.scalar_type());
}

at::Tensor Decoder::embed(std::span<const int64_t> tokens) {
  const auto T = static_cast<int64_t>(tokens.size());
  ORTHANT_CHECK(T > 0);
  at::Tensor ids = at::empty({1, T}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), ids.mutable_data_ptr<int64_t>());
  return model_.primitives_.embedding(ids, *model_.embedding_);
}

at::Tensor Decoder::block(int64_t layer, const at::Tensor& x) {
  const auto at = static_cast<size_t>(layer);
  require_positions(model_.architecture_.max_position_embeddings, caches_[at].length + x.size(1));
  Primitives with_cache = model_.primitives_;
  with_cache.attention = [&](const at::Tensor& qkv, const Microbatch&, const AttentionShape&) {
    return attend(at, qkv);
  };
  return model_.run_block(with_cache, static_cast<int>(layer), x, {});
}

at::Tensor Decoder::logits(const at::Tensor& x) const {
  const at::Tensor logits = model_.logits(x.narrow(1, x.size(1) - 1, 1)).flatten();
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

at::Tensor Decoder::advance(std::span<const int64_t> tokens) {
  at::NoGradGuard no_grad;
  at::Tensor x = embed(tokens);
  for (size_t layer = 0; layer < caches_.size(); ++layer) x = block(static_cast<int64_t>(layer), x);
  return logits(x);
}

int64_t sample_token(const at::Tensor& all_logits_V, const Sampling& sampling, int64_t index) {
  const at::Tensor logits_V = sampling.vocabulary > 0 ? all_logits_V.narrow(0, 0, sampling.vocabulary) : all_logits_V;
  if (sampling.temperature <= 0) return logits_V.argmax().item<int64_t>();
  const at::Tensor probabilities = (logits_V.to(at::kDouble) / sampling.temperature).softmax(0);
  const double* p = probabilities.const_data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(logits_V.numel()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return p[a] > p[b]; });
  double mass = 0;
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || mass < sampling.top_p)) mass += p[order[kept++]];
  const auto words = philox_block(sampling.seed, stream_of("sample"), static_cast<uint64_t>(index));
  double u = (static_cast<double>(words[0]) * 4294967296.0 + words[1]) / 18446744073709551616.0 * mass;
  for (size_t i = 0; i + 1 < kept; ++i) {
    u -= p[order[i]];
    if (u < 0) return order[i];
  }
  return order[kept - 1];
}

Generated generate_tokens(const Advance& advance, int64_t positions, std::span<const int64_t> prompt,
                          int64_t max_new_tokens, const Sampling& sampling, int64_t end_of_text) {
  Generated made;
  auto& tokens = made.tokens;
  auto length = static_cast<int64_t>(prompt.size());
  if (max_new_tokens > 0) require_positions(positions, length);
  std::vector<int64_t> next(prompt.begin(), prompt.end());
  while (static_cast<int64_t>(tokens.size()) < max_new_tokens) {
    if (length > positions) {
      made.out_of_positions = true;
      break;
    }
    const at::Tensor logits = advance(next);
    const int64_t token = sample_token(logits, sampling, static_cast<int64_t>(tokens.size()));
    if (token == end_of_text) break;
    tokens.push_back(token);
    next = {token};
    ++length;
  }
  return made;
}

}  // namespace orthant
