// Dropout and normal deviates by global element index: the values do not depend on the rank that holds the element.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

/// Dropout of `count` elements with the global indices first_index, first_index + 1, and so on. `stream` identifies the
/// tensor and its use (layer, step); uses that must be independent need different streams.
template <class T>
struct Dropout {
  const T* x;
  T* y;  // out; may alias x
  int64_t count;
  uint64_t seed;
  uint64_t stream;
  uint64_t first_index;
  double p;  // probability of dropping an element, in [0, 1)
};

/// y = keep ? x / (1 - p) : 0. Element i is kept if word i % 4 of philox_block(seed, stream, i / 4) is at least p *
/// 2^32. The same call on the gradient is the backward pass. T is float, Bf16 or double.
template <class T>
void dropout(const Dropout<T>& args);

/// Normal deviates for a run of elements. T is float or double.
template <class T>
struct FillNormal {
  T* out;
  int64_t count;
  uint64_t seed;
  uint64_t stream;
  uint64_t first_index;
  double mean = 0.0;
  double std = 1.0;
};

/// out = mean + std * normal(seed, stream, index), computed in double and rounded once. It applies Box-Muller to the
/// two 52-bit uniforms of philox_block(seed, stream, index / 2): the cosine branch for even indices, the sine branch
/// for odd ones.
template <class T>
void fill_normal(const FillNormal<T>& args);

/// One standard normal deviate, bit-equal to that of fill_normal().
double normal(uint64_t seed, uint64_t stream, uint64_t index);

}  // namespace orthant
