// Dropout by global index: which elements fall is a function of keys and positions, so backward draws the mask again.
#pragma once

#include "model/primitives.h"

namespace orthant {

/// x with elements zeroed by key and the rest scaled by 1/(1-p), [B,T,C], any dtype; no autograd. Its own transpose:
/// the same call on the gradient is the backward pass. Source: Srivastava et al. 2014, section 4.
at::Tensor masked_by_key(const at::Tensor& x_BTC, const Microbatch& batch, const DropoutKey& key);

/// The same under autograd.
at::Tensor keyed_dropout(const at::Tensor& x_BTC, const Microbatch& batch, const DropoutKey& key);

}  // namespace orthant
