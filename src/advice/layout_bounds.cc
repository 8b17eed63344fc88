// Bounds of a layout, from its sizes and from the passes of its busiest rank.
#include <algorithm>
#include <functional>
#include <numeric>

#include "advice/layout_search.h"
#include "config/from_config.h"
#include "plan/pass_time.h"

namespace orthant {

double step_seconds_bound(const Config& config, const RunFacts& facts) {
  const Sharding sharding = make_sharding(config, facts);
  int64_t largest = 1, sequences = 0;
  for (const Range& microbatch : sharding.data_shards.front().microbatches) {
    largest = std::max(largest, microbatch.size());
    sequences += microbatch.size();
  }
  const int64_t layers = sharding.architecture.num_hidden_layers, ranks = sharding.mesh.axis_size(kPipeline);
  const Range most = {0, (layers + ranks - 1) / ranks};
  const bool has_ends = ranks == 1;
  const PassTimes passes = PassTimer(sharding, largest).stage({.layers = most, .first = has_ends, .last = has_ends});
  const double seconds = passes.forward.seconds() + passes.input.seconds() + passes.weights.seconds();
  return seconds * static_cast<double>(sequences) / static_cast<double>(largest) * (1 - kRoundingOfSums);
}

int64_t memory_bytes_bound(const Config& config, const RunFacts& facts) {
  const Architecture architecture = make_architecture(config, facts.vocab_size);
  const Mesh mesh = make_mesh(config, facts.ranks);
  const auto& p = config.parallelism;
  const int master = master_bytes(config), element = dtype_bytes(config.training.dtype);
  const auto tensor = mesh.axis_size(kColumn) * mesh.axis_size(kRow) * mesh.axis_size(kDepth);
  const double held = 1.0 / (tensor * mesh.axis_size(kPipeline));  // share of a parameter that a rank holds
  const double owned = 1.0 * mesh.axis_size(kReplica) / mesh.size();
  const KeptElements kept = kept_gradients(config);
  const double weights = p.zero_stage == 3 ? owned * element : held * element;
  const double gradients = kept == KeptElements::none ? 0 : master * (kept == KeptElements::all ? held : owned);
  const double state = config.optimizer.offload ? 0 : p.zero_stage == 0 ? held : owned;
  double bytes = 0;
  for (const ParameterInfo& parameter : parameter_table(architecture)) {
    const double elements = std::accumulate(parameter.shape.begin(), parameter.shape.end(), 1.0, std::multiplies<>());
    const auto moments = static_cast<double>(state_bytes(config.optimizer, parameter, master));
    bytes += elements * (weights + gradients + state * moments);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace orthant
