#include "parallel/vocabulary/redistribution_plan.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace orthant {
namespace {

/// Gives each layer in turn to the stage that is shortest with it, among stages with room. Of equal stages it takes the
/// first, but the very first stage last.
std::vector<int> assign_greedily(int layers, const std::vector<double>& beside, const std::vector<int>& room) {
  const size_t stages = beside.size();
  std::vector<int> out(stages, 0);
  for (int layer = 0; layer < layers; ++layer) {
    size_t best = stages;
    for (size_t i = 1; i <= stages; ++i) {
      const size_t stage = i % stages;
      if (out[stage] < room[stage] && (best == stages || out[stage] + beside[stage] < out[best] + beside[best]))
        best = stage;
    }
    ORTHANT_CHECK(best < stages, layers, "no room for as many layers");
    ++out[best];
  }
  return out;
}

}  // namespace

std::vector<int> redistributed(int layers, const std::vector<double>& beside) {
  ORTHANT_CHECK(layers >= 0 && !beside.empty(), layers, beside.size());
  std::vector<int> room(beside.size(), layers);
  const double longest = longest_stage(assign_greedily(layers, beside, room), beside);
  int all = 0;
  for (size_t stage = 0; stage < beside.size(); ++stage) {
    room[stage] = std::clamp(static_cast<int>(std::floor(longest - beside[stage] + 1e-9)), 0, layers);
    all += room[stage];
  }
  // Surplus room is taken from the last stage if it has other work.
  if (beside.back() > 0) room.back() = std::max(0, room.back() - (all - layers));
  return assign_greedily(layers, beside, room);
}

double longest_stage(const std::vector<int>& layers, const std::vector<double>& beside) {
  ORTHANT_CHECK(layers.size() == beside.size(), layers.size(), beside.size());
  double longest = 0;
  for (size_t stage = 0; stage < layers.size(); ++stage) longest = std::max(longest, layers[stage] + beside[stage]);
  return longest;
}

}  // namespace orthant
