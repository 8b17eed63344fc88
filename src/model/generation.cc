#include "model/generation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/labels.h"
#include "base/philox.h"

namespace orthant {
namespace {

// Texts of different lengths in one batch. They are aligned at their ends, so that the last column holds the last token
// of each. The columns before a text hold padding, as a document of its own, which no token of the text sees.
//
// Example: the texts [1 2 3] and [4] become the rows [1 2 3] and [0 0 4]; the second has the documents [0 0] and [4].
class AlignedTexts {
 public:
  AlignedTexts(int64_t positions, std::function<at::Tensor(const Microbatch&)> logits)
      : positions_(positions), logits_(std::move(logits)) {}

  at::Tensor append(std::span<const int64_t> texts, std::span<const std::vector<int64_t>> tokens) {
    const at::NoGradGuard no_grad;
    ORTHANT_CHECK(!texts.empty() && texts.size() == tokens.size(), texts.size(), tokens.size());
    const auto B = static_cast<int64_t>(texts.size());
    const auto T = static_cast<int64_t>(std::ranges::max_element(tokens, {}, &std::vector<int64_t>::size)->size());
    if (columns_ == 0) {
      for (size_t i = 0; i < texts.size(); ++i) padding_[texts[i]] = T - static_cast<int64_t>(tokens[i].size());
    }
    Microbatch batch;
    batch.tokens_BT = at::zeros({B, T}, at::kLong);
    batch.positions_BT = at::empty({B, T}, at::kLong);
    batch.labels_BT = at::full({B, T}, kIgnoredLabel, at::kLong);
    batch.labels_BT.select(1, T - 1).zero_();  // the value has no meaning
    batch.sequence_positions_T = at::arange(columns_, columns_ + T);
    batch.samples_B = at::empty({B}, at::kLong);
    batch.sequence_length = columns_ + T;
    auto packing = std::make_shared<Packing>();
    for (int64_t row = 0; row < B; ++row) {
      const int64_t text = texts[static_cast<size_t>(row)], padding = padding_.at(text);
      const std::vector<int64_t>& added = tokens[static_cast<size_t>(row)];
      ORTHANT_CHECK(!added.empty() && (columns_ == 0 || std::ssize(added) == T), added.size(), T);
      if (batch.sequence_length - padding > positions_) {
        throw ConfigError(fmt::format("a text of {} tokens must have at most the model's max_position_embeddings = {}",
                                      batch.sequence_length - padding, positions_));
      }
      std::ranges::copy_backward(added, batch.tokens_BT[row].mutable_data_ptr<int64_t>() + T);
      int64_t* positions = batch.positions_BT[row].mutable_data_ptr<int64_t>();
      for (int64_t column = columns_; column < batch.sequence_length; ++column) {
        *positions++ = column < padding ? column : column - padding;
      }
      batch.samples_B[row] = text;
      packing->document_starts.push_back(padding > 0 ? std::vector<int64_t>{0, padding} : std::vector<int64_t>{0});
    }
    const bool is_padded = std::ranges::any_of(texts, [&](int64_t text) { return padding_.at(text) > 0; });
    if (is_padded) batch.packing = std::move(packing);
    columns_ = batch.sequence_length;
    return logits_(batch);
  }

 private:
  const int64_t positions_;
  const std::function<at::Tensor(const Microbatch&)> logits_;
  int64_t columns_ = 0;
  std::map<int64_t, int64_t> padding_;  // columns before each text
};

}  // namespace

Advance advance_texts(int64_t positions, std::function<at::Tensor(const Microbatch&)> logits) {
  return [texts = std::make_shared<AlignedTexts>(positions, std::move(logits))](
             std::span<const int64_t> numbers, std::span<const std::vector<int64_t>> tokens) {
    return texts->append(numbers, tokens);
  };
}

int64_t sample_token(const at::Tensor& all_logits_V, const Sampling& sampling, int64_t index, int64_t text) {
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
  const uint64_t draw = (static_cast<uint64_t>(text) << 32) + static_cast<uint64_t>(index);
  const auto words = philox_block(sampling.seed, stream_of("sample"), draw);
  double u = (static_cast<double>(words[0]) * 4294967296.0 + words[1]) / 18446744073709551616.0 * mass;
  for (size_t i = 0; i + 1 < kept; ++i) {
    u -= p[order[i]];
    if (u < 0) return order[i];
  }
  return order[kept - 1];
}

std::vector<Generated> generate_tokens(
    const Advance& advance, int64_t positions, std::span<const std::vector<int64_t>> prompts, int64_t max_new_tokens,
    const Sampling& sampling, std::span<const int64_t> end_tokens, int64_t first_text,
    const std::function<bool(size_t text, std::span<const int64_t> made)>& should_continue) {
  std::vector<Generated> texts(prompts.size());
  std::vector<int64_t> growing;
  std::vector<std::vector<int64_t>> next;
  // Lets the text grow by these tokens, unless it has its length.
  const auto grow = [&](size_t text, std::vector<int64_t> tokens) {
    const auto made = std::ssize(texts[text].tokens);
    if (made >= max_new_tokens) return;
    if (std::ssize(prompts[text]) + made > positions) {
      texts[text].end = TextEnd::last_position;
      return;
    }
    growing.push_back(static_cast<int64_t>(text));
    next.push_back(std::move(tokens));
  };
  for (size_t text = 0; text < prompts.size(); ++text) {
    if (max_new_tokens > 0 && std::ssize(prompts[text]) > positions) {
      throw ConfigError(fmt::format(
          "the {} tokens of prompt {} must be at most the model's max_position_embeddings = {}; shorten the prompt",
          prompts[text].size(), first_text + static_cast<int64_t>(text) + 1, positions));
    }
    grow(text, prompts[text]);
  }
  while (!growing.empty()) {
    const at::Tensor logits = advance(growing, next);
    const std::vector<int64_t> advanced = std::exchange(growing, {});
    next.clear();
    for (size_t row = 0; row < advanced.size(); ++row) {
      const auto text = static_cast<size_t>(advanced[row]);
      std::vector<int64_t>& made = texts[text].tokens;
      const int64_t token =
          sample_token(logits[static_cast<int64_t>(row)], sampling, std::ssize(made), first_text + advanced[row]);
      if (std::ranges::find(end_tokens, token) != end_tokens.end()) {
        texts[text].end = TextEnd::end_token;
        continue;
      }
      made.push_back(token);
      if (!should_continue || should_continue(text, made)) {
        grow(text, {token});
      } else {
        texts[text].end = TextEnd::stopped;
      }
    }
  }
  return texts;
}

}  // namespace orthant
