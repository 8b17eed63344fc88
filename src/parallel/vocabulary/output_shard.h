// OutputShard: one rank's part of the output layer for one microbatch, without the messages between pipeline ranks. It
// computes logits over the rank's rows of the vocabulary, their statistics, and gradients from all ranks' statistics.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "model/weights.h"
#include "parallel/tensor/slice_mesh.h"
#include "parallel/tensor/token_rows.h"
#include "parallel/vocabulary/layers_plan.h"

namespace orthant {

/// The tokens of a microbatch, the same on every rank.
struct OutputTokens {
  at::Tensor labels_N;        // int64, in the whole vocabulary; kIgnoredLabel: no loss, no gradient
  at::Tensor weights_N = {};  // factor of each token's loss; undefined: 1
  double loss_scale = 1;      // factor of all losses
  bool with_gradient = true;  // false: only the loss is computed, and nothing is kept
};

/// Softmax of each token over the whole vocabulary, from all ranks' statistics; float64, the same bits on all ranks.
struct FullSoftmax {
  at::Tensor maximum_N, sum_N;  // maximum of z; sum of exp(z - maximum)
  at::Tensor picked_N;          // the label's z
  at::Tensor losses_N;          // weighted and scaled; 0 for an ignored label
};
/// Softmax and losses from the statistics of all ranks, [ranks, OutputLoss::statistics(), N].
FullSoftmax compute_full_softmax(const at::Tensor& statistics, const OutputLoss& loss, int64_t vocabulary,
                                 const OutputTokens& tokens);

class OutputShard {
 public:
  /// x: [N, C], or with a mesh this rank's shard of [B, T, C], in the head's working dtype. The head has the rows of
  /// the slice. DataError for a label outside the vocabulary.
  OutputShard(const VocabularySlice& slice, const OutputLoss& loss, const Weight& head, at::Tensor x,
              OutputTokens tokens, SliceMesh mesh = {});

  /// Naive order: maxima [N] of the logits. Keeps the logits in float32 or float64 for exponentials().
  at::Tensor maxima();
  /// Naive order: exponentials under the maximum of all ranks. Returns the other statistics, [statistics - 1, N].
  at::Tensor exponentials(const at::Tensor& maximum_N);
  /// Both in one pass, under this pipeline rank's own maximum: [statistics, N].
  at::Tensor statistics();

  /// Computes the products for the input's gradient that need no softmax of the whole vocabulary (algorithm 2). Returns
  /// the memory into which input_gradient() writes this rank's summand: that of the products if the dtypes are equal.
  at::Tensor multiply();
  void input_gradient(const FullSoftmax& whole, const at::Tensor& sum);
  bool multiplied() const { return multiplied_; }
  /// Frees the parts of the weight gathered from other rows. gradients() gathers them again if needed.
  void free_weight();

  /// Adds the weight's gradient. Returns this rank's summand of the input's gradient, unless multiply() was called. The
  /// last call on the object.
  at::Tensor gradients(const FullSoftmax& whole);

 private:
  struct Factors {
    at::Tensor exponentials_N;  // factor of the exponentials under that maximum
    at::Tensor uniform_N;       // subtracted from the gradient of each logit, with smoothing
    at::Tensor picked_N;        // the label's p - 1, with all factors but its slope; meaningless for an ignored label
  };
  Factors factors(const FullSoftmax& whole, const at::Tensor& top_N) const;
  void gather_weight();
  at::Tensor products(const Range& tokens) const;
  void keep(const Range& tokens, const at::Tensor& products, const at::Tensor& statistics, bool has_maximum);
  void make_products();
  void sum_products();
  at::Tensor bent(at::Tensor rows_HC) const;
  at::Tensor summand(const Factors& factors);
  void add_weight_gradient(const at::Tensor& dw_VC, const Factors& factors) const;
  int64_t size() const { return x_NC_.size(0); }

  const Range real_;
  const int64_t vocabulary_;
  const OutputLoss loss_;
  const Weight& head_;
  const SliceMesh mesh_;
  const int64_t sequences_;
  const at::Tensor x_NC_;
  const OutputTokens tokens_;
  at::Tensor w_VC_;
  std::optional<TokenRows> label_rows_;  // tokens whose label is in this rank's rows; only with gradient
  at::Tensor top_N_, products_NV_;  // maximum under the exponentials; naive order: logits until Z
  at::Tensor place_top_N_;          // maximum over all columns, the one under product_NC_
  at::Tensor exponentials_NV_;
  at::Tensor slopes_NV_, label_slopes_N_;  // of capped logits; slopes_NV_ only with smoothing
  at::Tensor product_NC_, uniform_NC_;     // exponentials, and slopes, times the weight; a shard with a mesh
  at::Tensor picked_NC_;                   // with a mesh: this rank's shard of the labels' rows
  bool multiplied_ = false;
};

}  // namespace orthant
