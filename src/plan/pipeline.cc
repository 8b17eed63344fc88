#include "plan/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/pipeline/csv_plan.h"
#include "parallel/pipeline/messages_plan.h"
#include "parallel/pipeline/plan.h"
#include "parallel/vocabulary/redistribution_plan.h"

namespace orthant {
namespace {

constexpr std::string_view kScheduleKey = "parallelism.pipeline_parallel_schedule";
constexpr std::string_view kDegreeKey = "parallelism.pipeline_parallel_degree";
constexpr std::string_view kStagesKey = "parallelism.pipeline_parallel_stages_per_rank";
constexpr std::string_view kLayersKey = "parallelism.pipeline_parallel_layers";

// What a file may hold beside computations and their messages is not for it to say.
void require_runnable(const Schedule& schedule) {
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const auto& row = schedule.rows[rank];
    if (row.empty()) {
      throw ConfigError(fmt::format("line {} has no Action; every pipeline rank needs a stage", rank + 1));
    }
    for (const Action& action : row) {
      if (facts(action.kind).lane != Lane::collective) continue;
      throw ConfigError(fmt::format("{} (line {}) is not for a file to say: weights are held whole, and gradients "
                                    "reduced behind each row; leave out UNSHARD, RESHARD and REDUCE_GRAD",
                                    to_string(action), rank + 1));
    }
  }
}

Schedule read_schedule(const Config& config, int ranks, int microbatches) {
  const std::string where = config.locate(kScheduleKey);
  std::ifstream file(config.parallelism.pipeline_parallel_schedule);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw ConfigError(where + ": there is no such file");
  try {
    const Schedule schedule = schedule_from_csv(text.str(), ranks, microbatches);
    require_runnable(schedule);
    return schedule;
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", where, error.what()));
  } catch (const DataError& error) {
    throw ConfigError(fmt::format("{}: {}", where, error.what()));
  }
}

// FLOPs of a token in one layer's forward, in products with weights and in attention, and in the head's logits.
struct LayerFlops {
  LayerFlops(const Architecture& a, int64_t seq_len) {
    Architecture one = a, none = a;
    one.num_hidden_layers = 1, none.num_hidden_layers = 0;
    for (const ParameterInfo& parameter : parameter_table(one)) {
      const bool multiplied = parameter.layer == 0 && parameter.decays() && parameter.role != ParameterRole::projection;
      if (multiplied) weights += 2 * static_cast<double>(parameter.size());
    }
    const double all = training_flops_per_token(one, seq_len), ends = training_flops_per_token(none, seq_len);
    attention = (all - ends) / 3 - weights;
    head = ends / 3;
  }
  double weights = 0, attention = 0, head = 0;
};

// The layers of each stage so that the costliest costs least, the head being worth so many layers.
std::vector<int64_t> cut_by_cost(int64_t layers, int64_t stages, double head_layers) {
  std::vector<double> beside(static_cast<size_t>(stages), 0);
  beside.back() = head_layers;
  const std::vector<int> cut = redistributed(static_cast<int>(layers), beside);
  return {cut.begin(), cut.end()};
}

}  // namespace

Schedule schedule_of(const Config& config, int ranks, int microbatches, int64_t layers) {
  const auto& p = config.parallelism;
  const auto require_layers = [&](int64_t stages) {
    if (stages <= layers) return;
    const std::string cut = config.locate(kDegreeKey), by = config.locate(kScheduleKey);
    throw ConfigError(fmt::format("{} and {} make {} of {}; lower the degree to {} or less", cut, by,
                                  counted(stages, "stage"), config.locate("model.num_hidden_layers"),
                                  std::max<int64_t>(1, layers * ranks / stages)));
  };
  if (p.pipeline_parallel_schedule.ends_with(".csv")) {
    const Schedule schedule = read_schedule(config, ranks, microbatches);
    require_layers(stage_count(schedule));
    return schedule;
  }
  const PipelineSchedule& known = pipeline_schedule(p.pipeline_parallel_schedule);
  int64_t chunks = known.stages_per_rank;
  if (p.pipeline_parallel_stages_per_rank > 0) chunks = p.pipeline_parallel_stages_per_rank;
  if (chunks != known.stages_per_rank && !known.any_stages) {
    throw ConfigError(fmt::format("{}: {} takes {} a rank; set it to 0", config.locate(kStagesKey),
                                  config.locate(kScheduleKey), counted(known.stages_per_rank, "stage")));
  }
  require_layers(std::min(chunks, layers + 1) * ranks);
  const Schedule schedule = known.make(ranks, static_cast<int>(chunks), microbatches, Durations::of(1, 1, 1));
  return add_messages(schedule);
}

std::vector<Stage> stages_of(const Config& config, const std::vector<int>& stage_owner, const Architecture& a) {
  const auto count = static_cast<int64_t>(stage_owner.size());
  const int64_t layers = a.num_hidden_layers;
  const LayerFlops flops(a, config.training.seq_len);
  const bool recompute = config.activation_checkpoint.mode == "full";
  std::vector<int64_t> cut = config.parallelism.pipeline_parallel_layers;
  if (cut == std::vector<int64_t>{-1}) {
    const double layer = (recompute ? 4 : 3) * (flops.weights + flops.attention);
    cut = cut_by_cost(layers, count, 3 * flops.head / layer);
  } else if (!cut.empty()) {
    if (*std::min_element(cut.begin(), cut.end()) < 0) {
      throw ConfigError(config.locate(kLayersKey) + ": a stage has 0 layers or more; -1 alone cuts by cost");
    }
    if (static_cast<int64_t>(cut.size()) != count) {
      throw ConfigError(fmt::format("{} names {}, but there are {}", config.locate(kLayersKey),
                                    counted(static_cast<int64_t>(cut.size()), "stage"), count));
    }
    const int64_t sum = std::accumulate(cut.begin(), cut.end(), int64_t{0});
    if (sum != layers) {
      throw ConfigError(fmt::format("{} adds up to {}, not to {}", config.locate(kLayersKey), counted(sum, "layer"),
                                    config.locate("model.num_hidden_layers")));
    }
  }
  std::vector<Stage> stages;
  int64_t begin = 0;
  for (int64_t s = 0; s < count; ++s) {
    const auto at = static_cast<size_t>(s);
    const int64_t size = cut.empty() ? shard(layers, static_cast<int>(count), static_cast<int>(s)).size() : cut[at];
    stages.push_back(
        {.owner = stage_owner[at], .layers = {begin, begin + size}, .first = s == 0, .last = s == count - 1});
    begin += size;
  }
  return stages;
}

std::vector<StageFlops> flops_of(const Config& config, const Architecture& a, const std::vector<Stage>& stages) {
  const LayerFlops layer(a, config.training.seq_len);
  std::vector<StageFlops> flops;
  for (const Stage& stage : stages) {
    const auto layers = static_cast<double>(stage.layers.size());
    const double forward = layers * (layer.weights + layer.attention);
    const bool again = config.activation_checkpoint.mode == "full";
    // The loss makes the gradients of the head on its way forward; the embedding is a lookup.
    flops.push_back({.forward = forward + (stage.last ? 3 * layer.head : 0),
                     .input = layers * (layer.weights + 2 * layer.attention) + (again ? forward : 0),
                     .weights = layers * layer.weights});
  }
  return flops;
}

Durations durations_of(const std::vector<StageFlops>& flops, int ranks) {
  double forward = 0;
  for (const StageFlops& stage : flops) forward += stage.forward;
  const double unit = forward / ranks;
  Durations durations;
  for (const StageFlops& stage : flops) {
    durations.stage_seconds.push_back(
        Durations::of(stage.forward / unit, stage.input / unit, stage.weights / unit).seconds);
  }
  return durations;
}

}  // namespace orthant
