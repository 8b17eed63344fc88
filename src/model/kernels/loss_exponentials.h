// Softmax over a vocabulary shard, stored until the statistics over the full vocabulary are known.
#pragma once

#include "model/kernels/loss.h"

namespace orthant {

/// The shard [first, first + vocab) of the vocabulary, stored as its gradient up to one factor per row. Elements are
/// exp(logit - maximum), times the slope of a capped logit. They are 0 at the label, and 0 in the whole row if its
/// label is ignored.
template <class T>
struct SoftmaxExponentials {
  const Wide<T>* logits;  // [rows, vocab]
  T* exponentials;        // [rows, vocab], may alias the logits; null: stores nothing
  T* slopes;              // [rows, vocab]: slopes of capped logits, 0 if the label is ignored; null: stores none
  const int64_t* labels;
  int64_t rows;
  int64_t vocab;
  int64_t first;
  bool has_maximum;               // statistics hold a maximum, usually one over more shards
  SoftmaxStatistics* statistics;  // out, [rows]; of this shard alone
  // Out, [rows]: slope of the label's capped logit, 1 if another shard holds it; null: none.
  double* label_slopes;
  OutputLoss loss = {};
};

/// Reads each row once, and once more if it must find the maximum.
template <class T>
void softmax_exponentials(const SoftmaxExponentials<T>& args);

}  // namespace orthant
