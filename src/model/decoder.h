// Autoregressive generation with a cache of keys and values, so that each new token costs one forward of one token.
#pragma once

#include "model/transformer.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace orthant {

/// The state of one sequence: keys and values of every layer. Throws ConfigError beyond max_position_embeddings. The
/// model's primitives may hold only some of the heads, if its logits are unsharded. With pipeline parallelism, the
/// owner of each layer calls embed(), block() and logits() instead of advance().
class Decoder {
 public:
  explicit Decoder(const Transformer& model);
  /// Appends tokens and returns the logits after the last one, [V] in float32 (float64 for a float64 model).
  at::Tensor advance(std::span<const int64_t> tokens);
  at::Tensor embed(std::span<const int64_t> tokens);         // [1,T,C]
  at::Tensor block(int64_t layer, const at::Tensor& x_BTC);  // appends to the layer's keys and values
  at::Tensor logits(const at::Tensor& x_BTC) const;          // [V], after the last token

 private:
  // One layer's keys and values, each [this rank's key heads, capacity, D].
  struct Cache {
    at::Tensor keys, values;
    int64_t length = 0;
  };
  at::Tensor attend(size_t layer, const at::Tensor& qkv_BTE);

  const Transformer& model_;
  std::vector<Cache> caches_;  // by layer
};

struct Sampling {
  double temperature = 0.8;  // 0: always the most probable token
  // Sample from the smallest set of most probable tokens with at least this mass (Holtzman et al. 2020).
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

/// Appends tokens to a text and returns the logits after the last one, as Decoder::advance() does.
using Advance = std::function<at::Tensor(std::span<const int64_t> tokens)>;

/// Continues the prompt by at most max_new_tokens, until end_of_text or the last position. The prompt must have at
/// least one token and at most `positions` (ConfigError).
Generated generate_tokens(const Advance& advance, int64_t positions, std::span<const int64_t> prompt,
                          int64_t max_new_tokens, const Sampling& sampling, int64_t end_of_text);

}  // namespace orthant
