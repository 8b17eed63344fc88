// Dropout by global index: the mask is a function of keys and positions, so backward computes it again instead of
// storing it.
#pragma once

#include "model/primitives.h"

namespace orthant {

/// Zeroes elements of x [B,T,C] by key and scales the rest by 1/(1-p), for any dtype and without autograd. The map is
/// its own transpose: the same call on the gradient is the backward pass. Source: Srivastava et al. 2014, section 4.
at::Tensor apply_dropout_mask(const at::Tensor& x_BTC, const Microbatch& batch, const DropoutKey& key);

/// apply_dropout_mask() as an autograd function; returns x itself for probability 0.
at::Tensor dropout_with_key(const at::Tensor& x_BTC, const Microbatch& batch, const DropoutKey& key);

}  // namespace orthant
