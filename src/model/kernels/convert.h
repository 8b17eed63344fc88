// Casts between element types, and the additions and scalings that go with gradient accumulation.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

/// dst[i] += float(src[i]).
void add_bf16_into_f32(float* dst, const Bf16* src, int64_t count);

/// dst[i] = src[i], rounded to nearest even where the type narrows.
void cast(const float* src, Bf16* dst, int64_t count);
void cast(const Bf16* src, float* dst, int64_t count);

/// x[i] *= factor, the factor rounded to the type x is computed in.
void scale(float* x, int64_t count, double factor);
void scale(Bf16* x, int64_t count, double factor);
void scale(double* x, int64_t count, double factor);

}  // namespace orthant
