// Recomputations: settings of a run file, and all that a block can have.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include "base/text.h"
#include "model/recompute_plan.h"

namespace orthant {

/// Returns the settings of a run file that recomputes these operations in every `layers`-th block, after `more`.
inline std::vector<std::string> selective(const std::vector<std::string>& operations, int layers = 1,
                                          std::vector<std::string> more = {}) {
  more.insert(more.end(), {"activation_checkpoint.mode=selective",
                           "activation_checkpoint.operations=" + join(operations, ","),
                           fmt::format("activation_checkpoint.layers={}", layers)});
  return more;
}

/// Every set of operations that a run file can name, except the empty one, and the whole block. With layers > 1, only
/// every such block recomputes.
inline std::vector<Recomputation> all_recomputations(int64_t layers = 1) {
  constexpr size_t kParts = std::size(kRecomputedParts);
  std::vector<Recomputation> all = {{.names = {kWholeBlock}, .layers = layers}};
  for (size_t set = 1; set < size_t{1} << kParts; ++set) {
    Recomputation& recompute = all.emplace_back(Recomputation{.names = {}, .layers = layers});
    for (size_t part = 0; part < kParts; ++part) {
      if ((set >> part & 1) != 0) recompute.names.emplace_back(kRecomputedParts[part]);
    }
  }
  return all;
}

}  // namespace orthant
