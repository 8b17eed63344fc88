#include "data/blend.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "base/errors.h"

namespace orthant {
namespace {

// A source with a smaller weight, relative to the largest, gives no sample among the first 10^14 anyway.
constexpr double kLeastWeight = 1e-15;

}  // namespace

Blend::Blend(std::vector<double> weights) : weights_(std::move(weights)) {
  ORTHANT_CHECK(!weights_.empty());
  for (const double weight : weights_) ORTHANT_CHECK(weight > 0 && std::isfinite(weight), weight);
  // Only ratios matter, and a power of two keeps them exactly. With the largest from 1 to 2, no time below is infinite.
  const int exponent = std::ilogb(std::ranges::max(weights_));
  for (double& weight : weights_) total_ += weight = std::max(std::ldexp(weight, -exponent), kLeastWeight);
}

double Blend::time(size_t source, int64_t number) const {
  return static_cast<double>(2 * number + 1) / weights_[source];
}

BlendedSample Blend::operator()(int64_t g) const {
  ORTHANT_CHECK(g >= 0, g);
  // Until time t, a source gives between w t / 2 - 1/2 and w t / 2 + 1/2 samples. So at this time, all sources together
  // have given at most g, and at least g - sources - 2.
  const double sources = static_cast<double>(num_sources());
  const double early = std::max(0.0, (2.0 * static_cast<double>(g) - sources - 2) / total_);
  using Next = std::pair<double, size_t>;  // time and source
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  std::vector<int64_t> taken(weights_.size());
  int64_t before = 0;
  for (size_t source = 0; source < weights_.size(); ++source) {
    // The number of samples with time < early. Divisions round, so the estimate may be one off.
    int64_t& count = taken[source];
    count = std::max<int64_t>(0, std::llround(std::floor((early * weights_[source] + 1) / 2)) - 1);
    while (time(source, count) < early) ++count;
    while (count > 0 && time(source, count - 1) >= early) --count;
    before += count;
    next.emplace(time(source, count), source);
  }
  ORTHANT_CHECK(before <= g, before, g);
  while (true) {
    const size_t source = next.top().second;
    const int64_t number = taken[source]++;
    if (before++ == g) return {static_cast<int64_t>(source), number};
    next.pop();
    next.emplace(time(source, taken[source]), source);
  }
}

}  // namespace orthant
