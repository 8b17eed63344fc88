// A decoder, written once, on plain tensors, for one device: it carries out the operations of block_plan.h. A mesh runs
// the same code with other primitives. RMSNorm: arXiv 1910.07467; rotary positions: 2104.09864; SwiGLU: 2002.05202;
// grouped-query attention: 2305.13245.
#pragma once

#include "model/architecture.h"
#include "model/block_plan.h"
#include "model/primitives.h"
#include "model/recompute_plan.h"
#include "model/weights.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace orthant {

/// Cosines and sines of position x inverse frequency, times rotary_factor(), each [P, D/2]; computed in float64 and
/// stored in the given dtype.
std::pair<at::Tensor, at::Tensor> rotary_tables(const Architecture& a, int64_t positions, at::ScalarType dtype);

class Transformer {
 public:
  struct Options {
    Recomputation recompute = {};  // of the blocks, in backward
    uint64_t seed = 0;             // seed of dropout
    double label_smoothing = 0, z_loss = 0;  // terms of the training loss: OutputLoss::smoothing, z_weight
  };

  Transformer(const Architecture& architecture, const Weights& weights, Primitives primitives, Options options);

  /// Embedding, learned positions if the model has them, and dropout: [B,T] -> [B,T,C].
  at::Tensor embed(const Microbatch& batch) const;
  /// The same for rows of the embedding that the caller has looked up.
  at::Tensor embedded(const at::Tensor& rows_BTC, const Microbatch& batch) const;
  /// One block: [B,T,C] -> [B,T,C].
  at::Tensor block(int layer, const at::Tensor& x_BTC, const Microbatch& batch) const;
  /// The loss terms: label smoothing and z-loss in training, else the plain cross entropy.
  OutputLoss output_loss(const Microbatch& batch) const;
  /// Final norm, head and loss: the sum of token losses times batch.loss_scale, a float64 scalar.
  at::Tensor loss(const at::Tensor& x_BTC, const Microbatch& batch) const;
  /// The complete model: embedding, every block, loss.
  at::Tensor forward(const Microbatch& batch) const;
  /// The final norm, whose result is the input of the head.
  at::Tensor final_norm(const at::Tensor& x_BTC) const;
  /// Final norm and head: the capped logits [N,V] of the N tokens that have a label, in float32 (float64 for float64).
  at::Tensor logits(const at::Tensor& x_BTC, const Microbatch& batch) const;
  /// The complete model up to those logits: embedding, every block, head.
  at::Tensor logits(const Microbatch& batch) const;

  /// How often one microbatch accumulates into a weight's gradient: twice for a tied embedding, else once.
  int uses(const Weight& weight) const;

  const Weight& embedding() const { return *embedding_; }
  const Weight& head() const { return *head_; }
  const Architecture& architecture() const { return architecture_; }

 private:
  /// An operation with the weight that it reads in one layer (null for operations without one), and the number of the
  /// dropout of its output, if that is added to the residual stream.
  struct BoundOperation {
    Operation operation;
    const Weight* weight = nullptr;
    uint64_t dropout_site = 0;
  };
  struct Block {
    std::vector<BoundOperation> operations;
    std::vector<RecomputedRange> recomputed;
    AttentionShape attention;
  };
  /// The tensors that pass from one operation of a block to the next.
  struct Values {
    at::Tensor stream;  // the residual stream
    at::Tensor added;   // a product that the next norm, or the end of the block, adds to the stream; may be undefined
    at::Tensor value;   // output of the last operation, if the next one reads it
  };
  at::Tensor drop(const at::Tensor& x_BTC, const Microbatch& batch, uint64_t site) const;
  at::Tensor run_blocks(const Microbatch& batch) const;
  void run_operation(const Block& block, size_t i, const Microbatch& batch, Values& values) const;
  /// If the operation's output is added to the stream, applies dropout to it and stores it in values.added.
  void add_to_stream(const BoundOperation& bound, const Microbatch& batch, Values& values) const;
  void run_recomputed(const Block& block, const RecomputedRange& range, const Microbatch& batch, Values& values) const;

  Architecture architecture_;
  Primitives primitives_;
  Options options_;
  AttentionShape attention_;
  std::vector<Block> blocks_;
  const Weight *embedding_, *final_norm_, *head_;
  const Weight* positions_ = nullptr;  // null without learned positions
};

}  // namespace orthant
