#include "model/generation.h"

#include "base/errors.h"
#include "base/labels.h"
#include "base/philox.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace orthant {
namespace {

void require_positions(int64_t positions, int64_t tokens) {
  if (tokens <= positions) return;
  throw ConfigError(fmt::format(
      "{} tokens of the prompt must be at most the model's max_position_embeddings = {}; shorten the prompt", tokens,
      positions));
}

// Tokens of one sequence at the positions from `first` on. Only the last one has a label, whose value has no meaning.
Microbatch next_tokens(std::span<const int64_t> tokens, int64_t first) {
  const auto T = static_cast<int64_t>(tokens.size());
  ORTHANT_CHECK(T > 0);
  Microbatch batch;
  batch.tokens_BT = at::empty({1, T}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), batch.tokens_BT.mutable_data_ptr<int64_t>());
  batch.labels_BT = at::full({1, T}, kIgnoredLabel, at::kLong);
  batch.labels_BT.select(1, T - 1).zero_();
  batch.sequence_positions_T = at::arange(first, first + T);
  batch.positions_BT = batch.sequence_positions_T.unsqueeze(0);
  batch.samples_B = at::zeros({1}, at::kLong);
  batch.sequence_length = first + T;
  return batch;
}

}  // namespace

Advance advance_text(int64_t positions, std::function<at::Tensor(const Microbatch&)> logits) {
  return [positions, logits = std::move(logits), length = int64_t{0}](std::span<const int64_t> tokens) mutable {
    const at::NoGradGuard no_grad;
    const Microbatch batch = next_tokens(tokens, length);
    length = batch.sequence_length;
    require_positions(positions, length);
    return logits(batch).flatten();
  };
}

int64_t sample_token(const at::Tensor& all_logits_V, const Sampling& sampling, int64_t index) {
  const at::Tensor logits_V = sampling.vocabulary > 0 ? all_logits_V.narrow(0, 0, sampling.vocabulary) : all_logits_V;
  if (sampling.temperature <= 0) return logits_V.argmax().item<int64_t>();
  const at::Tensor probabilities = (logits_V.to(at::kDouble) / sampling.temperature).softmax(0);
  const double* p = probabilities.const_data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(logits_V.numel()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return p[a] > p[b]; });
  if (sampling.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(sampling.top_k)));
  double most = 0;
  for (const int64_t token : order) most += p[token];
  const double wanted = sampling.top_k > 0 ? sampling.top_p * most : sampling.top_p;
  double mass = 0;
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || mass < wanted)) mass += p[order[kept++]];
  const auto words = philox_block(sampling.seed, stream_of("sample"), static_cast<uint64_t>(index));
  double u = (static_cast<double>(words[0]) * 4294967296.0 + words[1]) / 18446744073709551616.0 * mass;
  for (size_t i = 0; i + 1 < kept; ++i) {
    u -= p[order[i]];
    if (u < 0) return order[i];
  }
  return order[kept - 1];
}

Generated generate_tokens(const Advance& advance, int64_t positions, std::span<const int64_t> prompt,
                          int64_t max_new_tokens, const Sampling& sampling, int64_t end_of_text,
                          const std::function<bool(std::span<const int64_t> made)>& should_continue) {
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
    if (should_continue && !should_continue(tokens)) break;
    next = {token};
    ++length;
  }
  return made;
}

}  // namespace orthant
