// Logits, and the head's product and the loss as one operator that never holds more than a chunk of them.
#pragma once

#include "model/primitives.h"

namespace orthant {

/// Logits as the model has them: c tanh(y / c), float32 or wider; for a cap c of 0, y itself.
at::Tensor soft_capped(const at::Tensor& y, double cap);

/// Sum of token losses times batch.loss_scale, a float64 scalar; see Primitives::cross_entropy.
/// Logits are made, judged and turned into gradients chunk by chunk of tokens, in forward: what is kept for backward is
/// the gradient of x, and the head's weight gradient is already added. Backward must therefore start here with 1.
/// DataError when a label is neither -100 nor inside the vocabulary.
at::Tensor fused_cross_entropy(const at::Tensor& x_BTC, const Weight& head_VC, const Microbatch& batch,
                               const OutputLoss& loss);

/// DataError for a label that is neither -100 nor inside the vocabulary.
void check_labels(const at::Tensor& labels, int64_t vocabulary);

}  // namespace orthant
