// Softmax cross-entropy over rows of logits: the losses, and the gradient, which overwrites the logits. The vocabulary
// may be sharded.
#pragma once

#include "base/labels.h"
#include "base/output_loss.h"
#include "model/kernels/element.h"

namespace orthant {

template <class T>
struct SoftmaxCrossEntropy {
  T* logits;              // [rows, vocab]; overwritten by the gradient if write_gradient
  const int64_t* labels;  // [rows], each in [0, vocab) or kIgnoredLabel
  int64_t rows;
  int64_t vocab;
  double scale;   // factor of the gradient only; usually 1 / (global number of valid labels)
  double* losses;  // out, [rows]: unscaled loss of each row, 0 if its label is ignored
  bool write_gradient = true;
  OutputLoss loss = {};
};

/// Computes losses[r] = logsumexp(logits[r]) - logits[r][label], and logits[r] = scale * (softmax - onehot), or zeros
/// if the label is ignored. `loss` may add capping, smoothing and z-loss. A row is summed in a fixed order, in double
/// beyond 1024 terms; a NaN logit makes the row's loss and gradient NaN. Returns -1 on success. Returns the first row
/// whose label is out of range, and then writes no output. T is float, Bf16 or double.
template <class T>
int64_t softmax_cross_entropy(const SoftmaxCrossEntropy<T>& args);

/// Statistics of one row over a vocabulary shard. Combined over all shards they determine the loss.
struct SoftmaxStatistics {
  double maximum;  // maximum of the logits
  double sum;      // sum of exp(logit - maximum)
  double picked;   // logit of the label if this shard holds it, else 0
  double total;    // sum of the logits if smoothing needs it, else 0
};

/// The loss of a row, from the statistics over the full vocabulary.
double loss_of(const SoftmaxStatistics& whole, const OutputLoss& loss, int64_t vocabulary);

/// The shard [first, first + vocab) of the vocabulary. Labels are ids of the full vocabulary.
template <class T>
struct SoftmaxShard {
  T* logits;  // [rows, vocab]
  const int64_t* labels;
  int64_t rows;
  int64_t vocab;
  int64_t first;
  // [rows]: softmax_statistics() writes those of the shard; softmax_loss() reads those of the full vocabulary.
  SoftmaxStatistics* statistics;
  OutputLoss loss = {};
  // For softmax_loss(), as in SoftmaxCrossEntropy:
  int64_t vocabulary = 0;  // size of the full vocabulary
  double scale = 0;
  double* losses = nullptr;  // out, [rows]
  bool write_gradient = true;
};

/// Writes the statistics of the logits, which are capped first if the loss caps them.
template <class T>
void softmax_statistics(const SoftmaxShard<T>& args);
/// Writes the losses. Overwrites the logits by the gradient if write_gradient, or by zeros if the label is ignored.
template <class T>
void softmax_loss(const SoftmaxShard<T>& args);

}  // namespace orthant
