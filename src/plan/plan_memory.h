// Counts the bytes of the tensors of ranks. A rank is known by its values only: see rank_values.h.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/rank_values.h"

namespace orthant {

/// Returns the bytes of the tensors of a rank with each of these values.
std::vector<MemoryBytes> count_memory(const ParameterPlacement& plan, const std::vector<RankValues>& ranks);

/// Bytes of a rank's tensors over its row.
struct RankTrace {
  int64_t always = 0;            // weights, gradients and optimizer state that it keeps, tables and statistics
  std::vector<int64_t> row = {};  // in addition to these: the most during each Action
};
RankTrace trace_memory(const Plan& plan, int rank);

}  // namespace orthant
