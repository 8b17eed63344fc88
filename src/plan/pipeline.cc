#include "plan/pipeline.h"

#include <fmt/format.h>

#include <fstream>
#include <numeric>
#include <sstream>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/pipeline/csv_plan.h"
#include "parallel/pipeline/messages_plan.h"
#include "parallel/pipeline/plan.h"

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

std::vector<Stage> stages_of(const Config& config, const std::vector<int>& stage_owner, int64_t layers) {
  const auto count = static_cast<int64_t>(stage_owner.size());
  const std::vector<int64_t>& asked = config.parallelism.pipeline_parallel_layers;
  if (!asked.empty()) {
    if (static_cast<int64_t>(asked.size()) != count) {
      throw ConfigError(fmt::format("{} names {}, but there are {}", config.locate(kLayersKey),
                                    counted(static_cast<int64_t>(asked.size()), "stage"), count));
    }
    const int64_t sum = std::accumulate(asked.begin(), asked.end(), int64_t{0});
    if (sum != layers) {
      throw ConfigError(fmt::format("{} adds up to {}, not to {}", config.locate(kLayersKey), counted(sum, "layer"),
                                    config.locate("model.num_hidden_layers")));
    }
  }
  std::vector<Stage> stages;
  int64_t begin = 0;
  for (int64_t s = 0; s < count; ++s) {
    const auto at = static_cast<size_t>(s);
    const Range even = shard(layers, static_cast<int>(count), static_cast<int>(s));
    const int64_t end = begin + (asked.empty() ? even.size() : asked[at]);
    stages.push_back({.owner = stage_owner[at], .layers = {begin, end}, .first = s == 0, .last = s == count - 1});
    begin = end;
  }
  return stages;
}

}  // namespace orthant
