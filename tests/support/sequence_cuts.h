// Meshes that shard sequences, and the error of a run on such a mesh compared with one rank.
#pragma once

#include "tests/support/tiny_run.h"

#include <algorithm>
#include <string>
#include <vector>

namespace orthant {

struct Cut {
  int ulysses, ring, data = 1;
  std::vector<std::string> more = {};

  int ranks() const { return ulysses * ring * data; }
  std::vector<std::string> overrides() const {
    std::vector<std::string> all = {fmt::format("parallelism.context_parallel_ulysses={}", ulysses),
                                    fmt::format("parallelism.context_parallel_ring={}", ring)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string name() const {
    std::string text = fmt::format("ulysses {}, ring {}, data {}", ulysses, ring, data);
    for (const auto& word : more) text += ", " + word;
    return text;
  }
};

inline const std::string kTwoRings = "parallelism.context_parallel_attention=ring_self_attention";

/// Returns the largest relative error of the loss, the gradient norm, any gradient or any weight over all ranks and
/// steps.
inline NamedError worst_of_run(const Plan& plan, const std::vector<RankTrace>& have, const RankTrace& want) {
  NamedError worst;
  const auto look = [&](const std::string& what, const NamedError& found) {
    if (!(found.error <= worst.error)) worst = {found.error, what + " " + found.name};
  };
  for (size_t rank = 0; rank < have.size(); ++rank) {
    for (size_t step = 0; step < want.steps.size(); ++step) {
      const StepTrace &h = have[rank].steps[step], &w = want.steps[step];
      const auto number = static_cast<int>(rank);
      look("loss", {relative_error(h.loss, w.loss), ""});
      look("gradient norm", {relative_error(h.norm, w.norm), ""});
      look("gradient of", worst_parameter(plan, h.gradients, w.gradients, number));
      look("weight", worst_parameter(plan, h.weights, w.weights, number));
    }
  }
  return worst;
}

}  // namespace orthant
