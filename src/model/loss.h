// The head's product and the loss as one operator that never holds more than a chunk of logits.
#pragma once

#include "model/primitives.h"

namespace orthant {

/// Sum of token losses times batch.loss_scale, a float64 scalar; see Primitives::cross_entropy.
/// Logits are made, judged and turned into gradients chunk by chunk of tokens, in forward: what is kept for backward is
/// the gradient of x, and the head's weight gradient is already added. Backward must therefore start here with 1.
/// DataError when a label is neither -100 nor inside the vocabulary.
at::Tensor fused_cross_entropy(const at::Tensor& x_BTC, const Weight& head_VC, const Microbatch& batch);

}  // namespace orthant
