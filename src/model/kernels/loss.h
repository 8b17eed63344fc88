// Softmax cross-entropy over rows of logits: the loss, and the gradient written over the logits.
#pragma once

#include "base/labels.h"
#include "base/output_loss.h"
#include "model/kernels/element.h"

namespace orthant {

template <class T>
struct SoftmaxCrossEntropy {
  T* logits;              // [rows, vocab]; overwritten by the gradient when write_gradient
  const int64_t* labels;  // [rows], each in [0, vocab) or kIgnoredLabel
  int64_t rows;
  int64_t vocab;
  double scale;   // of the gradient only: 1 / (global number of valid tokens), as a rule
  double* losses;  // out, [rows]: unscaled loss of each row, 0 where ignored
  bool write_gradient = true;
  OutputLoss loss = {};
};

/// losses[r] = logsumexp(logits[r]) - logits[r][label]; logits[r] becomes scale * (softmax - onehot), or zeros where
/// the label is ignored; both with what `loss` asks for. Sums of a row run in a fixed order, in double beyond 1024
/// terms; a NaN logit makes the row's loss and gradient NaN. Returns -1, or the first row whose label is out of range;
/// then nothing was written. T is float, Bf16 or double.
template <class T>
int64_t softmax_cross_entropy(const SoftmaxCrossEntropy<T>& args);

/// What a part of the vocabulary says of each row: enough to know the loss from all parts.
struct SoftmaxStatistics {
  double maximum;  // of its logits
  double sum;      // of exp(logit - maximum)
  double picked;   // the label's logit, where it is in this part; else 0
  double total;    // of its logits, where smoothing asks for it; else 0
};

/// The loss of a row from what the whole vocabulary says of it.
double loss_of(const SoftmaxStatistics& whole, const OutputLoss& loss, int64_t vocabulary);

/// The part [first, first + vocab) of a larger vocabulary; labels are of the whole one.
template <class T>
struct SoftmaxPart {
  T* logits;  // [rows, vocab]
  const int64_t* labels;
  int64_t rows;
  int64_t vocab;
  int64_t first;
  SoftmaxStatistics* statistics;  // [rows]: written by softmax_statistics, of all parts for softmax_gradient
  double scale = 0;               // of the gradient
  OutputLoss loss = {};
  int64_t vocabulary = 0;  // the whole one's size, for softmax_gradient
};

/// Reads logits, writes statistics; of capped logits, where the loss caps them.
template <class T>
void softmax_statistics(const SoftmaxPart<T>& args);
/// Writes the gradient over the logits, zeros where the label is ignored.
template <class T>
void softmax_gradient(const SoftmaxPart<T>& args);

}  // namespace orthant
