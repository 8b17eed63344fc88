// One rank's share of the output layer for one microbatch, without the messages: logits over its rows of the
// vocabulary, what it says of them, and gradients from what all have said.
//
// With y = x W^T over the rank's rows, z = cap(y), and top its row maximum, it keeps from S to T the exponentials
// e = exp(z - top), times z's derivative where z is capped, in the dtype of the products: N V/p numbers, and no others
// of that size. The alternatives: logits, whose rounding to bfloat16 costs 2^-9 |z| of the probability where the
// exponential's costs 2^-9; or statistics alone, and a fourth product to make the logits again. What is wider than
// that lives for a chunk of tokens. e is 0 at the label: there p - 1 cancels, so it is computed apart, in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/weights.h"
#include "parallel/vocabulary/layers_plan.h"

namespace orthant {

/// What every rank knows of a microbatch's tokens.
struct OutputTokens {
  at::Tensor labels_N;         // int64, of the whole vocabulary; kIgnoredLabel: no loss, no gradient
  at::Tensor weights_N = {};   // of each token's loss; undefined: 1
  double loss_scale = 1;       // of all
  bool with_gradient = true;   // else the loss is all that is asked for, and nothing is kept
};

/// What is known of each token once all ranks' statistics are, in float64, the same bits on all of them.
struct WholeSoftmax {
  at::Tensor maximum_N, sum_N;  // of exp(z - maximum)
  at::Tensor picked_N;          // the label's z
  at::Tensor losses_N;          // times weight and scale; 0 where the label is ignored
};
/// From [ranks, OutputLoss::statistics(), N], in order of ranks.
WholeSoftmax whole_softmax(const at::Tensor& statistics, const OutputLoss& loss, int64_t vocabulary,
                           const OutputTokens& tokens);

class OutputShare {
 public:
  /// x [N, C] in the head's working dtype; the head's rows are the slice's. DataError for a label that is none.
  OutputShare(const VocabularySlice& slice, const OutputLoss& loss, const Weight& head, at::Tensor x_NC,
              OutputTokens tokens);

  /// The logits, and maxima_N of them. Keeps them, wide, for exponentials(): the naive order.
  at::Tensor maxima();
  /// Exponentials under a maximum that all ranks share, and the other statistics, [statistics - 1, N].
  at::Tensor exponentials(const at::Tensor& maximum_N);
  /// Both in one, under the rank's own maximum: [statistics, N].
  at::Tensor statistics();

  /// The products of the input's gradient that can be made before the softmax is known; and later the summand.
  void multiply();
  at::Tensor input_gradient(const WholeSoftmax& whole);

  /// Adds the weight's gradient; returns the summand of the input's, where multiply() has not been called. Ends it.
  at::Tensor gradients(const WholeSoftmax& whole);

  const at::Tensor& x() const { return x_NC_; }
  const OutputTokens& tokens() const { return tokens_; }

 private:
  struct Factors {
    at::Tensor exponentials_N;  // what they are multiplied by
    at::Tensor uniform_N;       // what is taken from each, with smoothing
    at::Tensor picked_H;        // the label's p - 1, with all factors
  };
  Factors factors(const WholeSoftmax& whole) const;
  at::Tensor logits(const Range& tokens) const;
  void fill(const Range& tokens, const at::Tensor& z, const at::Tensor& top, const at::Tensor& statistics);
  at::Tensor logit_gradient(const Range& tokens, const Factors& factors) const;
  template <class F>
  void for_chunks(F f) const;
  int64_t size() const { return x_NC_.size(0); }

  const Range real_;
  const int64_t vocabulary_;
  const OutputLoss loss_;
  const Weight& head_;
  const at::Tensor w_VC_;
  const at::Tensor x_NC_;
  const OutputTokens tokens_;
  at::Tensor ignored_, hit_, row_;     // tokens without loss; tokens whose label is here, and its row
  at::Tensor top_N_, logits_NV_;       // of the exponentials; of the naive order, until they are made
  at::Tensor exponentials_NV_;
  at::Tensor slopes_NV_, slope_H_;     // of capped logits, where smoothing asks for it; at labels
  at::Tensor product_NC_, uniform_NC_;  // of exponentials and of slopes with the weight
  bool multiplied_ = false;
};

}  // namespace orthant
