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

/// Samples the token at `index` of the generated text, as a pure function of logits, options and index.
int64_t sample_token(const at::Tensor& logits_V, const Sampling& sampling, int64_t index);

struct Generated {
  std::vector<int64_t> tokens;
  bool out_of_positions = false;  // true if generation ended at the model's last position
};

/// Appends tokens to a text and returns the logits [V] after the last one.
using Advance = std::function<at::Tensor(std::span<const int64_t> tokens)>;

/// The Advance of one text with a model of `positions` positions; ConfigError beyond them. `logits` returns the logits
/// [1,V] of the token with a label in a microbatch of one sequence. The model's attention must be cached_attention().
Advance advance_text(int64_t positions, std::function<at::Tensor(const Microbatch& batch)> logits);

/// Continues the prompt by at most max_new_tokens, until end_of_text or the last position. `should_continue`, if given,
/// receives the tokens made so far after each new one; generation stops when it returns false. The prompt must have at
/// least one token and at most `positions` (ConfigError).
Generated generate_tokens(const Advance& advance, int64_t positions, std::span<const int64_t> prompt,
                          int64_t max_new_tokens, const Sampling& sampling, int64_t end_of_text,
                          const std::function<bool(std::span<const int64_t> made)>& should_continue = {});

}  // namespace orthant
