// The output layer: capped logits, and a loss fused with the head's product that holds the logits of only one chunk of
// tokens at a time.
#pragma once

#include "model/primitives.h"

namespace orthant {

/// Capped logits c tanh(y / c), or y itself for a cap c of 0, in float32 (float64 for float64).
at::Tensor apply_softcap(const at::Tensor& y, double cap);

/// The sum of token losses times batch.loss_scale, a float64 scalar; see Primitives::cross_entropy. Forward computes
/// logits, losses and gradients chunk by chunk. It keeps only the gradient of x for backward, and it has already
/// accumulated the head's weight gradient. The gradient that reaches this loss in backward must therefore be 1.
/// Throws DataError as check_labels() does.
at::Tensor fused_cross_entropy(const at::Tensor& x_BTC, const Weight& head_VC, const Microbatch& batch,
                               const OutputLoss& loss);

/// The sum of losses [N], a float64 scalar on their device. The CPU adds them in order.
at::Tensor sum_losses(const at::Tensor& losses_N);

}  // namespace orthant
