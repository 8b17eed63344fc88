// Autoregressive generation. Attention caches keys and values (attention_cache.h), so that each new token costs one
// forward of one token.
#pragma once

#include "model/primitives.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace orthant {

struct Sampling {
  double temperature = 0.8;  // 0: always the most probable token
  int64_t top_k = 0;         // sample from this number of most probable tokens; 0 = all
  // Nucleus sampling (Holtzman et al. 2020): sample from the fewest most probable of the top_k tokens whose total
  // probability is at least top_p of theirs.
  double top_p = 0.95;
  uint64_t seed = 1234;
  int64_t vocabulary = 0;    // sample only ids below it, as the model may have more than the tokenizer; 0 = all
};

/// Samples token `index` of a generated text, as a pure function of logits, options, index and the number of the text.
int64_t sample_token(const at::Tensor& logits_V, const Sampling& sampling, int64_t index, int64_t text = 0);

/// Why a text ended: with an end token, which is not part of it; because should_continue returned false; with
/// max_new_tokens; or at the model's last position.
enum class TextEnd { end_token, stopped, max_new_tokens, last_position };

struct Generated {
  std::vector<int64_t> tokens;
  TextEnd end = TextEnd::max_new_tokens;
};

/// Appends tokens to texts that grow together, and returns the logits [texts, V] after the last token of each. `texts`
/// are their numbers, ascending: all of them in the first call, and later those that still grow. tokens[i] belongs to
/// texts[i]; lengths may differ in the first call only.
using Advance = std::function<at::Tensor(std::span<const int64_t> texts, std::span<const std::vector<int64_t>> tokens)>;

/// The Advance of a model with `positions` positions; ConfigError beyond them. `logits` returns the logits [B,V] of the
/// tokens with a label in a microbatch. The model's attention must be a cached_attention() of its own.
Advance advance_texts(int64_t positions, std::function<at::Tensor(const Microbatch& batch)> logits);

/// Continues each prompt by at most max_new_tokens, until one of end_tokens or the last position. `should_continue`, if
/// given, receives the index of a text and the tokens made so far after each new one; the text ends when it returns
/// false. Text i draws the tokens of text number first_text + i, whatever the other prompts are. Each prompt must have
/// at least one token and at most `positions` (ConfigError).
std::vector<Generated> generate_tokens(
    const Advance& advance, int64_t positions, std::span<const std::vector<int64_t>> prompts, int64_t max_new_tokens,
    const Sampling& sampling, std::span<const int64_t> end_tokens, int64_t first_text = 0,
    const std::function<bool(size_t text, std::span<const int64_t> made)>& should_continue = {});

}  // namespace orthant
