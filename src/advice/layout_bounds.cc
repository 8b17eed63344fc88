#include "advice/layout_bounds.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "advice/zero_choices.h"
#include "config/from_config.h"
#include "plan/microbatch_memory.h"
#include "plan/pass_time.h"
#include "schedule/row_memory.h"

namespace orthant {
namespace {

int64_t volume_of(const ParameterInfo& parameter) {
  return std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
}

// The most bytes that each row holds of activations, messages between stages and temporaries. The ranks with the
// smallest shards of the batch and of the sequences count, so that the others hold no less.
std::vector<int64_t> max_row_bytes(const Pipeline& pipeline) {
  const std::vector<Range>& microbatches = pipeline.data_shards.back().microbatches;
  const RowMemory rows(pipeline.passes);
  std::vector<int64_t> held;
  const int ranks = pipeline.mesh.axis_size(kPipeline), of_row = pipeline.mesh.size() / ranks;
  for (int row = 0; row < ranks; ++row) {
    std::map<std::pair<int64_t, int>, MicrobatchBytes> known;  // by number of sequences and stage
    const auto bytes_of = [&](int stage, int microbatch) {
      const int64_t sequences = microbatches[static_cast<size_t>(microbatch)].size();
      if (sequences == 0) return MicrobatchBytes();
      const auto [found, is_new] = known.try_emplace({sequences, stage});
      if (is_new) {
        const MicrobatchMemory memory = microbatch_memory(pipeline, (row + 1) * of_row - 1, sequences);
        found->second = microbatch_bytes(memory, pipeline.stages[static_cast<size_t>(stage)],
                                         pipeline.architecture.dropout > 0, {});
      }
      return found->second;
    };
    held.push_back(rows.profile(row, bytes_of).peak({}).peak.total());
  }
  return held;
}

}  // namespace

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

LayoutBounds::LayoutBounds(const Config& config, const RunFacts& facts)
    : pipeline_(make_pipeline(make_sharding(config, facts))),
      rows_(static_cast<size_t>(pipeline_.mesh.axis_size(kPipeline))) {
  const Pipeline& pipeline = pipeline_;
  const int master = master_bytes(pipeline.config);
  for (const ParameterInfo& parameter : parameter_table(pipeline.architecture)) {
    const auto elements = static_cast<double>(volume_of(parameter));
    const double state = elements * static_cast<double>(state_bytes(pipeline.config.optimizer, parameter, master));
    const bool of_vocabulary = parameter.role == ParameterRole::embedding || parameter.role == ParameterRole::head;
    if (!pipeline.vocabulary.empty() && of_vocabulary) {
      const auto parts = static_cast<double>(rows_.size());
      for (Row& row : rows_) row.elements += elements / parts, row.state_bytes += state / parts;
    } else {
      const Stage& stage = pipeline.stages[static_cast<size_t>(pipeline.stage_of(parameter))];
      Row& row = rows_[static_cast<size_t>(stage.owner)];
      row.elements += elements, row.state_bytes += state;
    }
  }
}

double LayoutBounds::step_seconds() const {
  const Timeline timeline = simulate(pipeline_.passes, pass_seconds(pipeline_, pipeline_.stages));
  double last = 0;
  for (const Span& span : timeline.spans) {
    if (span.stream == Stream::compute) last = std::max(last, span.end);
  }
  return last * (1 - kRoundingOfSums);
}

const std::vector<int64_t>& LayoutBounds::row_bytes(bool gradients_by_unit) {
  std::optional<std::vector<int64_t>>& known = gradients_by_unit ? row_bytes_by_unit_ : row_bytes_;
  if (known) return *known;
  if (gradients_by_unit == has_gradients_by_unit(pipeline_.config)) return known.emplace(max_row_bytes(pipeline_));
  Config other = pipeline_.config;
  set_zero(other.parallelism, gradients_by_unit ? 2 : 0);
  return known.emplace(max_row_bytes(make_pipeline(make_sharding(other, pipeline_.facts))));
}

int64_t LayoutBounds::memory_bytes(const Config& config) {
  const Mesh mesh = make_mesh(config, pipeline_.facts.ranks);
  const int master = master_bytes(config), element = dtype_bytes(config.training.dtype);
  // The shares of a pipeline rank's parameters that one of its ranks holds, and owns.
  const double held = 1.0 / (mesh.axis_size(kColumn) * mesh.axis_size(kRow) * mesh.axis_size(kDepth));
  const double owned = 1.0 * mesh.axis_size(kReplica) * mesh.axis_size(kPipeline) / mesh.size();
  const KeptElements kept = kept_gradients(config);
  const int64_t zero = config.parallelism.zero_stage;
  const double masters = element == master ? 0 : master * (zero == 0 ? held : owned);
  const double weights = element * (zero == 3 ? owned : held) + masters;
  const double gradients = kept == KeptElements::none ? 0 : master * (kept == KeptElements::all ? held : owned);
  const double state = config.optimizer.offload ? 0 : zero == 0 ? held : owned;
  const std::vector<int64_t>& of_rows = row_bytes(has_gradients_by_unit(config));
  int64_t most = 0;
  for (size_t row = 0; row < rows_.size(); ++row) {
    const double states = rows_[row].elements * (weights + gradients) + rows_[row].state_bytes * state;
    most = std::max(most, static_cast<int64_t>(states) + of_rows[row]);
  }
  return most;
}

}  // namespace orthant
