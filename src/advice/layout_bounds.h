// Lower bounds of a layout's step time and memory. They cost much less than its plan, so that a search can leave out
// most layouts without planning them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/pipeline.h"

namespace orthant {

/// Sums of seconds in another order differ by less than this share.
inline constexpr double kRoundingOfSums = 1e-9;

/// Lower bound of the step time: the passes of the pipeline rank with most layers. It does not depend on ZeRO, the
/// schedule or the vocabulary's placement. Requires facts.hardware.
double step_seconds_bound(const Config& config, const RunFacts& facts);

/// Bounds of the layouts with one order of passes and one recomputation, which differ in ZeRO only.
class LayoutBounds {
 public:
  /// The bounds for the mesh, the schedule and the recomputation of this run file. Throws ConfigError if it is illegal.
  LayoutBounds(const Config& config, const RunFacts& facts);
  /// Lower bound of the step time: the end of the last pass. Requires facts.hardware.
  double step_seconds() const;
  /// Lower bound of the memory of the rank that needs most, in bytes: the mean of weights, gradients and optimizer
  /// state over the ranks of a pipeline rank, and the most that their row holds without ZeRO's buffers. `config` has
  /// the stage of ZeRO. Throws ConfigError if that is illegal.
  int64_t memory_bytes(const Config& config);

 private:
  // A pipeline rank.
  struct Row {
    double elements = 0;     // of its parameters
    double state_bytes = 0;  // of their optimizer state
  };
  const std::vector<int64_t>& row_bytes(bool gradients_by_unit);

  Pipeline pipeline_;
  std::vector<Row> rows_;
  /// By pipeline rank: activations, messages and temporaries on one rank. With gradients by unit, backward consists of
  /// more passes, and a message may arrive later.
  std::optional<std::vector<int64_t>> row_bytes_, row_bytes_by_unit_;
};

}  // namespace orthant
