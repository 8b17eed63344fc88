// The order in which a run takes samples from several sources, by weight. The order is a function of the number of the
// sample, so every rank and every resumed run finds the same one without a stored list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace orthant {

/// Sample `number` of source `source`; numbers go on over epochs.
struct BlendedSample {
  int64_t source = 0;
  int64_t number = 0;
  bool operator==(const BlendedSample&) const = default;
};

/// Sample k of a source with weight w comes at time (2k + 1) / w, and a run takes samples in the order of time; of
/// equal times, that of the first source. After any number of samples, the counts are those of Webster's method of
/// apportionment: with S sources and weights of sum W, each differs from its share by at most 1/2 + S w / (2 W).
///
/// Example: weights 3 and 1 give the sources 0 0 1 0, repeated.
/// Source: D. Webster's divisor method (Sainte-Lague), as in M. L. Balinski and H. P. Young, "Fair Representation",
/// 1982.
class Blend {
 public:
  /// LogicError unless there is a weight, and all are positive and finite.
  explicit Blend(std::vector<double> weights);
  /// Sample g of the run. Costs O(S log S) for S sources. LogicError unless g >= 0.
  BlendedSample operator()(int64_t g) const;
  int64_t num_sources() const { return static_cast<int64_t>(weights_.size()); }

 private:
  double time(size_t source, int64_t number) const;

  std::vector<double> weights_;
  double total_ = 0;
};

}  // namespace orthant
