// Sums over ranks in one fixed order: by position, each element separately. The bits of a sum therefore do not depend
// on the transport, the algorithm, or the cut of a tensor into buckets and shards.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace orthant {

/// Whether a dtype can be summed: the dtypes that libtorch adds, and bool as a logical or.
bool has_sum(at::ScalarType type);

/// output[i] = sources[0][i] + sources[1][i] + ..., from the left, for `count` elements. float16 and bfloat16 are added
/// in float32 and rounded once. The output may be one of the sources. The last `maxima` elements, which must be
/// float64, are not added: output[i] is the largest of the sources' elements. Throws LogicError for a dtype without a
/// sum.
void ordered_sum(std::byte* output, std::span<const std::byte* const> sources, int64_t count, at::ScalarType type,
                 int64_t maxima = 0);

}  // namespace orthant
