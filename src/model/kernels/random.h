// Dropout and normal deviates by global element index: the same values whatever rank holds the element.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

/// A run of `count` elements whose global indices are first_index, first_index + 1, ... `stream` names the tensor and
/// the occasion (layer, step); two uses that must not agree need two streams.
template <class T>
struct Dropout {
  const T* x;
  T* y;  // out; may be x itself
  int64_t count;
  uint64_t seed;
  uint64_t stream;
  uint64_t first_index;
  double p;  // chance that an element is dropped, in [0, 1)
};

/// y = keep ? x / (1 - p) : 0, where element i is kept when word i % 4 of philox_block(seed, stream, i / 4) is at least
/// p * 2^32. Applied to the gradient with the same key it is its own backward pass. T is float, Bf16 or double.
template <class T>
void dropout(const Dropout<T>& args);

/// Deviates of the normal distribution for a run of elements. T is float or double.
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

/// out = mean + std * normal(seed, stream, index), computed in double and rounded once: Box-Muller on the two 52-bit
/// uniforms of philox_block(seed, stream, index / 2), the cosine branch for even, the sine branch for odd indices.
template <class T>
void fill_normal(const FillNormal<T>& args);

/// One standard normal deviate; the same bits as fill_normal gives.
double normal(uint64_t seed, uint64_t stream, uint64_t index);

}  // namespace orthant
