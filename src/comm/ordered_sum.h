// The one order of a sum over ranks: by position, each element by itself, so that the bits depend on neither the
// transport nor the algorithm nor how a tensor is cut into buckets and shards.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace orthant {

/// Whether a dtype has one: those that libtorch adds, and bool, a logical or.
bool has_sum(at::ScalarType type);

/// output[i] = sources[0][i] + sources[1][i] + ..., from the left; narrow floats add in float32 and round once. The
/// output may be one of the sources. LogicError for a dtype that has no sum.
void ordered_sum(std::byte* output, std::span<const std::byte* const> sources, int64_t count, at::ScalarType type);

}  // namespace orthant
