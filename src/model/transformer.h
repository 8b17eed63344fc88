// A LLaMA-style decoder, written once, on plain tensors, for one device. What runs on a mesh is this, with other
// primitives. RMSNorm: arXiv 1910.07467; rotary positions: 2104.09864; SwiGLU: 2002.05202; grouped-query attention:
// 2305.13245.
#pragma once

#include "model/architecture.h"
#include "model/primitives.h"
#include "model/weights.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace orthant {

/// [P, D/2] cosines and sines of position x inverse frequency; computed in float64, stored in the given dtype.
std::pair<at::Tensor, at::Tensor> rotary_tables(const Architecture& a, int64_t positions, at::ScalarType dtype);

class Transformer {
 public:
  struct Options {
    bool recompute = false;  // every block keeps its input only and runs again in backward
    uint64_t seed = 0;       // of dropout
    double label_smoothing = 0, z_loss = 0;  // of training's loss: OutputLoss::smoothing, z_weight
  };

  Transformer(const Architecture& architecture, const Weights& weights, Primitives primitives, Options options);

  /// [B,T] -> [B,T,C].
  at::Tensor embed(const Microbatch& batch) const;
  /// The same from rows that have been looked up.
  at::Tensor embedded(const at::Tensor& rows_BTC, const Microbatch& batch) const { return drop(rows_BTC, batch, 0); }
  /// One block: [B,T,C] -> [B,T,C].
  at::Tensor block(int layer, const at::Tensor& x_BTC, const Microbatch& batch) const;
  /// What is made of a token's logits: in training with smoothing and z-loss, else the plain cross entropy.
  OutputLoss output_loss(const Microbatch& batch) const;
  /// Final norm, head and loss: the sum of token losses times batch.loss_scale, a float64 scalar.
  at::Tensor loss(const at::Tensor& x_BTC, const Microbatch& batch) const;
  /// The whole model: embed, every block, loss.
  at::Tensor forward(const Microbatch& batch) const;
  /// Final norm: what the head multiplies.
  at::Tensor final_norm(const at::Tensor& x_BTC) const;
  /// Final norm and head, capped: [B,T,C] -> [B,T,V].
  at::Tensor logits(const at::Tensor& x_BTC) const;

  /// How often one microbatch adds to a weight's gradient: twice for a tied embedding, else once.
  int uses(const Weight& weight) const;

  const Weight& embedding() const { return *embedding_; }
  const Weight& head() const { return *head_; }
  const Architecture& architecture() const { return architecture_; }
  const AttentionShape& attention_shape() const { return attention_; }

 private:
  friend class Decoder;
  struct Block {
    const Weight *input_norm, *qkv, *o, *post_norm, *gate_up, *down;
    AttentionShape attention;
  };
  at::Tensor drop(const at::Tensor& x_BTC, const Microbatch& batch, uint64_t site) const;
  at::Tensor run_block(int layer, const at::Tensor& x_BTC, const Microbatch& batch) const;

  Architecture architecture_;
  Primitives primitives_;
  Options options_;
  AttentionShape attention_;
  std::vector<Block> blocks_;
  const Weight *embedding_, *final_norm_, *head_;
};

/// Runs f(x) without keeping anything but x, and again, with grad, when the gradient arrives (Chen et al. 2016,
/// arXiv 1604.06174). f must be a pure function of x and of captured constants.
at::Tensor recompute(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> f);

}  // namespace orthant
