// Making tokens one after another: keys and values of earlier positions are kept, not computed again.
#pragma once

#include "model/transformer.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace orthant {

/// One sequence's state. Positions are limited by max_position_embeddings (ConfigError beyond). The model's primitives
/// may know some of the heads only, as long as its logits are whole; where layers are elsewhere, whoever has them calls
/// the parts of advance().
class Decoder {
 public:
  explicit Decoder(const Transformer& model);
  /// Appends tokens and returns the logits after the last one, [V] in float32 (float64 for a float64 model).
  at::Tensor advance(std::span<const int64_t> tokens);
  at::Tensor embed(std::span<const int64_t> tokens);         // [1,T,C]
  at::Tensor block(int64_t layer, const at::Tensor& x_BTC);  // appends to the layer's keys and values
  at::Tensor logits(const at::Tensor& x_BTC) const;          // [V], after the last token

 private:
  // One layer's keys and values: [kv heads that are here, capacity, D].
  struct Cache {
    at::Tensor keys, values;
    int64_t length = 0;
  };
  at::Tensor attend(size_t layer, const at::Tensor& qkv_BTE);

  const Transformer& model_;
  std::vector<Cache> caches_;  // by layer
};

struct Sampling {
  double temperature = 0.8;  // 0: always the likeliest
  double top_p = 0.95;       // smallest set of likeliest tokens with at least this mass (Holtzman et al. 2020)
  uint64_t seed = 1234;
  int64_t vocabulary = 0;    // ids that may be drawn: the tokenizer's, where the model has more; 0: all
};

/// Draws the index-th token of a text: a function of logits, seed and index alone.
int64_t sample_token(const at::Tensor& logits_V, const Sampling& sampling, int64_t index);

struct Generated {
  std::vector<int64_t> tokens;
  bool out_of_positions = false;  // it ended because the model has no position left
};

/// What appends tokens to a text and has the logits after the last one, as Decoder::advance().
using Advance = std::function<at::Tensor(std::span<const int64_t> tokens)>;

/// Continues the prompt (at least one token; ConfigError where it has more than the positions) by at most
/// max_new_tokens, until end_of_text or the last position.
Generated generate_tokens(const Advance& advance, int64_t positions, std::span<const int64_t> prompt,
                          int64_t max_new_tokens, const Sampling& sampling, int64_t end_of_text);

}  // namespace orthant
