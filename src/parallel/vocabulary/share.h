// One rank's share of the output layer for one microbatch, without the messages between places of the pipeline: logits
// over its rows of the vocabulary, what it says of them, and gradients from what all have said.
//
// With y = x W^T over the rank's rows, z = cap(y), and top its row maximum, it keeps from S to T the exponentials
// e = exp(z - top), times z's derivative where z is capped, in the dtype of the products: N V/p numbers, and no others
// of that size but the derivatives, where smoothing asks for them. The alternatives: logits, whose rounding to bfloat16
// costs 2^-9 |z| of the probability where the exponential's costs 2^-9; or statistics alone, and a fourth product to
// make the logits again. What is wider than that lives for a chunk of tokens, or has their memory. e is 0 at the label:
// there p - 1 cancels, so it is computed apart, in float32. Factors of tokens go to x and to sums over rows, N C
// numbers, and never to e: it is written once, in the reading that sums it up, and read by the two products.
//
// Where a tensor mesh has the place's slice together (slice_mesh.h), the share is of one of its ranks, and what the
// place says to others is said once by each of its columns: statistics of all columns, joined, and sums over them of
// the gradient of x, of which each has a part. Sends, of N tokens at c columns and r rows: x as all-gather, statistics
// as all-gather, each product for the gradient of x as reduce-scatter (algorithm 2 sums two, before the factors of
// tokens are known: with exponentials, and the labels' rows); the weight as all-gather over rows, its gradient as
// reduce-scatter. All inside S, Z and T: what is between places is as without the mesh, in parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/weights.h"
#include "parallel/vocabulary/layers_plan.h"
#include "parallel/vocabulary/slice_mesh.h"

namespace orthant {

/// What every rank knows of a microbatch's tokens.
struct OutputTokens {
  at::Tensor labels_N;         // int64, of the whole vocabulary; kIgnoredLabel: no loss, no gradient
  at::Tensor weights_N = {};   // of each token's loss, where a user of the layer has some; undefined: 1
  double loss_scale = 1;       // of all
  bool with_gradient = true;   // else the loss is all that is asked for, and nothing is kept
};

/// What is known of each token once all ranks' statistics are, in float64, the same bits on all of them.
struct WholeSoftmax {
  at::Tensor maximum_N, sum_N;  // of exp(z - maximum)
  at::Tensor picked_N;          // the label's z
  at::Tensor losses_N;          // times weight and scale; 0 where the label is ignored
};
/// From [ranks, OutputLoss::statistics(), N], in order of ranks: [OutputLoss::statistics(), N] of all, in float64.
at::Tensor joined_statistics(const at::Tensor& statistics);
/// From the same.
WholeSoftmax whole_softmax(const at::Tensor& statistics, const OutputLoss& loss, int64_t vocabulary,
                           const OutputTokens& tokens);

class OutputShare {
 public:
  /// x [N, C], or with a mesh its part of [B, T, C], in the head's working dtype; the head's rows are the slice's.
  /// DataError for a label that is none.
  OutputShare(const VocabularySlice& slice, const OutputLoss& loss, const Weight& head, at::Tensor x,
              OutputTokens tokens, SliceMesh mesh = {});

  /// Maxima of the logits. Keeps these, wide, for exponentials(): the naive order.
  at::Tensor maxima();
  /// Exponentials under a maximum that all ranks share, and the other statistics, [statistics - 1, N].
  at::Tensor exponentials(const at::Tensor& maximum_N);
  /// Both in one, under the place's own maximum: [statistics, N].
  at::Tensor statistics();

  /// The products of the input's gradient that can be made before the softmax is known. Returns memory for the summand,
  /// which input_gradient() puts there: theirs, where that is as wide.
  at::Tensor multiply();
  void input_gradient(const WholeSoftmax& whole, const at::Tensor& sum);
  bool multiplied() const { return multiplied_; }
  /// Of the weight what other rows have goes; gradients() asks for it again, if it has to.
  void put_weight_away();

  /// Adds the weight's gradient; returns the summand of the input's, where multiply() has not been called. Ends it.
  at::Tensor gradients(const WholeSoftmax& whole);


 private:
  struct Factors {
    at::Tensor exponentials_N;  // what they are multiplied by, under that maximum
    at::Tensor uniform_N;       // what is taken from each, with smoothing
    at::Tensor picked_N;        // the label's p - 1, with all factors but its slope; no number where it is ignored
  };
  Factors factors(const WholeSoftmax& whole, const at::Tensor& top_N) const;
  void load_weight();
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
  at::Tensor hit_, row_;                   // tokens whose label is here, and its row
  at::Tensor top_N_, products_NV_;         // of the exponentials; of the naive order, until they are made
  at::Tensor place_top_N_;                 // of all columns: of product_NC_
  at::Tensor exponentials_NV_;
  at::Tensor slopes_NV_, label_slopes_N_;  // of capped logits; all of them where smoothing asks for them
  at::Tensor product_NC_, uniform_NC_;  // of exponentials and of slopes with the weight; with a mesh, this rank's part
  at::Tensor picked_NC_;                // with a mesh, the part of labels' rows
  bool multiplied_ = false;
};

}  // namespace orthant
