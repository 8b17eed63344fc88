// Softmax over a part of the vocabulary, kept until the whole is known.
#pragma once

#include "model/kernels/loss.h"

namespace orthant {

/// The part [first, first + vocab) of a larger vocabulary, kept as what its gradient is but for a factor of each row:
/// exponentials exp(logit - maximum), times the slope of a capped logit; 0 at the label, and where that is ignored.
template <class T>
struct SoftmaxExponentials {
  const Wide<T>* logits;  // [rows, vocab]
  T* exponentials;        // [rows, vocab], the logits' own memory if need be; null: nothing is kept
  T* slopes;              // [rows, vocab], of capped logits, 0 where the label is ignored; null: not asked for
  const int64_t* labels;
  int64_t rows;
  int64_t vocab;
  int64_t first;
  bool has_maximum;               // in the statistics: a larger one than the part's own, as a rule
  SoftmaxStatistics* statistics;  // out, [rows]; of the part alone
  double* label_slopes;           // out, [rows]: of capped logits, 1 where the label is elsewhere; null: not asked for
  OutputLoss loss = {};
};

/// In one reading of a row beside its maximum's.
template <class T>
void softmax_exponentials(const SoftmaxExponentials<T>& args);

}  // namespace orthant
