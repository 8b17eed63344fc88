// Lower bounds of a layout's step time and memory. They cost much less than its plan, so that a search can leave out
// most layouts without planning them.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "plan/pipeline.h"

namespace orthant {

/// Sums of seconds in another order differ by less than this fraction.
inline constexpr double kRoundingOfSums = 1e-9;

/// Lower bound of the step time: the passes of the pipeline rank with most layers. It does not depend on ZeRO, the
/// schedule or the vocabulary's placement. Requires facts.hardware.
double step_seconds_bound(const Config& config, const RunFacts& facts);

/// Sums over a set of parameters.
struct ParameterTotals {
  double elements = 0;
  double state_bytes = 0;   // of their optimizer state
  double largest = 0;       // elements of the largest part that ZeRO gathers and sums as a unit
  double largest_part = 0;  // elements of the largest part, or of the shard of it that these parameters have
};

/// The parameters of a model, which are the same in every layout, without Linformer's projections.
struct ModelParameters {
  /// Throws ConfigError if the model is illegal.
  ModelParameters(const Config& config, const RunFacts& facts);

  /// The parameters of a layer, or those of the embedding or of the output layer. `example` is one of them, because
  /// all are on one stage.
  struct Part {
    ParameterInfo example;
    bool of_vocabulary;
    ParameterTotals totals;
  };
  std::vector<Part> parts;
  ParameterTotals all;
};

/// Lower bound of the memory of the rank that needs most, in bytes, without a look at its passes: the mean of weights,
/// gradients and optimizer state over all ranks, and ZeRO's buffers for a unit that each of them has. `config` has the
/// stage of ZeRO. Throws ConfigError if the mesh is illegal.
int64_t state_bytes_bound(const Config& config, const RunFacts& facts, const ModelParameters& parameters);

/// The run with 4 microbatches for each pipeline rank, which are no larger than its first ones, if it has more. No rank
/// of the run itself then holds less. A run whose order of passes depends on their durations is returned as it is.
Config with_few_microbatches(Config config, const RunFacts& facts);

/// Bounds of the layouts with one order of passes and one recomputation, which differ in ZeRO only.
class LayoutBounds {
 public:
  /// The bounds for the mesh, the schedule and the recomputation of this run file. Throws ConfigError if it is illegal.
  /// `parameters` must outlive them.
  LayoutBounds(const Config& config, const RunFacts& facts, const ModelParameters& parameters);
  /// Lower bound of the step time: the passes, and the messages of gradients and of sharded weights. `config` has the
  /// stage of ZeRO. Requires facts.hardware. Throws ConfigError if the order of passes is illegal.
  double step_seconds(const Config& config);
  /// Lower bound of the memory of the rank that needs most, in bytes: the states of a pipeline rank, and the
  /// larger of ZeRO's buffers for its largest unit and the most that its row holds. `config` has the stage of ZeRO.
  /// Returns the bytes of the first pipeline rank that needs more than `enough`, if there is one. Throws ConfigError if
  /// the config is illegal.
  int64_t memory_bytes(const Config& config, int64_t enough = std::numeric_limits<int64_t>::max());

 private:
  struct PassesMemory;
  PassesMemory& passes_memory(bool gradients_by_unit);
  /// The end of the last pass; with post-validation, where steps overlap, the passes of the busiest pipeline rank.
  double passes_seconds();
  struct DataMessages;
  DataMessages data_messages(const Config& config) const;

  Config config_;
  Pipeline pipeline_;  // of with_few_microbatches()
  const ModelParameters* parameters_;
  std::vector<ParameterTotals> rows_;       // by pipeline rank
  std::vector<double> elements_of_layers_;  // by pipeline rank, without the vocabulary
  std::vector<int64_t> layers_;             // by pipeline rank
  std::optional<double> passes_seconds_;
  /// With gradients by unit, backward consists of more passes, and a message may arrive later.
  std::shared_ptr<PassesMemory> memory_, memory_by_unit_;
};

}  // namespace orthant
