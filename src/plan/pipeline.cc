// Makes or reads the schedule, splits the layers over the stages, and derives the durations of passes from FLOPs.
#include "plan/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>

#include "base/errors.h"
#include "base/text.h"
#include "config/from_config.h"
#include "config/refusal.h"
#include "model/block_plan.h"
#include "parallel/pipeline/csv_plan.h"
#include "parallel/pipeline/plan.h"
#include "parallel/vocabulary/interlaced_plan.h"
#include "parallel/vocabulary/redistribution_plan.h"
#include "plan/vocabulary.h"
#include "schedule/passes.h"
#include "schedule/validate.h"

namespace orthant {
namespace {

constexpr const char* kScheduleKey = "parallelism.pipeline_parallel_schedule";
constexpr const char* kDegreeKey = "parallelism.pipeline_parallel_degree";
constexpr const char* kStagesKey = "parallelism.pipeline_parallel_stages_per_rank";
constexpr const char* kLayersOfModel = "model.num_hidden_layers";
constexpr const char* kLayersKey = "parallelism.pipeline_parallel_layers";

Schedule read_schedule(const Config& config, int ranks, int num_data_shards, int microbatches) {
  constexpr uintmax_t kMostBytes = 1 << 28;
  const std::string where = config.locate(kScheduleKey), &path = config.parallelism.pipeline_parallel_schedule;
  std::error_code failed;
  if (std::filesystem::exists(path, failed) && !std::filesystem::is_regular_file(path, failed))
    throw ConfigError(where + " must name a CSV file, but it names a folder or device");
  if (const auto bytes = std::filesystem::file_size(path, failed); !failed && bytes > kMostBytes)
    throw ConfigError(fmt::format("{}: the file has {}, which must be at most {}", where,
                                  format_bytes(static_cast<double>(bytes)),
                                  format_bytes(static_cast<double>(kMostBytes))));
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    std::error_code ignored;
    const bool relative = std::filesystem::path(path).is_relative();
    const std::string from = std::filesystem::current_path(ignored).string();
    std::vector<std::string> names;
    for (const PipelineSchedule& schedule : pipeline_schedules()) names.emplace_back(schedule.name);
    throw ConfigError(fmt::format("{}: there is no such file{}; name an existing CSV file or one of {}", where,
                                  relative ? " in " + from : "", join(names, ", ")));
  }
  try {
    return schedule_from_csv(text.str(), ranks, microbatches);
  } catch (const MicrobatchCountMismatch& error) {
    const int64_t local = config.training.local_batch_size, count = error.microbatches;
    const int64_t sequences = shard(config.training.global_batch_size, num_data_shards, 0).size();
    throw Refusal(
        fmt::format("{}: {}, but {} and {} make {}", where, error.what(), config.locate("training.global_batch_size"),
                    config.locate("training.local_batch_size"), microbatches),
        {"training.global_batch_size", "training.local_batch_size"},
        {static_cast<double>(count * local * num_data_shards),
         std::ceil(static_cast<double>(sequences) / static_cast<double>(count))});
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", where, error.what()));
  } catch (const DataError& error) {
    throw ConfigError(fmt::format("{}: {}", where, error.what()));
  }
}

// Splits the layers over ranks so that the costliest rank costs least, then over each rank's stages so that its
// costliest stage costs least. The head costs `head_layers` layers. Returns the layers of each stage.
std::vector<int64_t> split_by_cost(int64_t layers, const std::vector<int>& stage_owner, double head_layers) {
  const int ranks = *std::max_element(stage_owner.begin(), stage_owner.end()) + 1;
  std::vector<std::vector<size_t>> stages_of_rank(static_cast<size_t>(ranks));
  for (size_t stage = 0; stage < stage_owner.size(); ++stage) {
    stages_of_rank[static_cast<size_t>(stage_owner[stage])].push_back(stage);
  }
  // redistributed() gives the last entry the fewest layers of equally good splits: the rank with the head is last.
  std::rotate(stages_of_rank.begin() + stage_owner.back(), stages_of_rank.begin() + stage_owner.back() + 1,
              stages_of_rank.end());
  const auto cut = [&](int of, size_t parts, bool has_head) {
    std::vector<double> beside(parts, 0);
    if (has_head) beside.back() = head_layers;
    return redistributed(of, beside);
  };
  const std::vector<int> of_ranks = cut(static_cast<int>(layers), stages_of_rank.size(), true);
  std::vector<int64_t> of_stages(stage_owner.size());
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::vector<size_t>& own = stages_of_rank[rank];
    const std::vector<int> of_own = cut(of_ranks[rank], own.size(), own.back() + 1 == stage_owner.size());
    for (size_t i = 0; i < own.size(); ++i) of_stages[own[i]] = of_own[i];
  }
  return of_stages;
}

// Returns the FLOPs per token of a stage with `layers` layers, of which `recomputing` recompute.
StageFlops stage_flops(const LayerFlops& layer, double layers, double recomputing, bool head) {
  // The loss computes the gradients of the head during its forward. The embedding is a lookup without FLOPs.
  return {.forward = layers * (layer.weights + layer.attention) + (head ? 3 * layer.head : 0),
          .input = layers * (layer.weights + 2 * layer.attention) + recomputing * layer.repeated,
          .weights = layers * layer.weights};
}

}  // namespace

LayerFlops::LayerFlops(const Architecture& a, int64_t seq_len, const Recomputation& recompute) {
  const std::vector<Operation> block = block_operations(a);
  for (const Operation& operation : recompute.repeated(block)) repeated += training_flops(operation, a, seq_len) / 3;
  for (const Operation& operation : block) {
    const double forward = training_flops(operation, a, seq_len) / 3;
    (operation.kind == OperationKind::linear ? weights : attention) += forward;
  }
  head = 2 * static_cast<double>(a.vocab_size * a.hidden_size);
}

std::string recomputation_text(const Config& config) {
  const ActivationCheckpointConfig& recompute = config.activation_checkpoint;
  if (recompute.mode == "none") return "";
  const std::string what = recompute.mode == "full" ? "blocks" : join(recompute.operations, " + ");
  return "recomputes " + what + (recompute.layers > 1 ? fmt::format(" in 1 of {} layers", recompute.layers) : "");
}

std::string schedule_text(const Config& config) {
  const auto& p = config.parallelism;
  std::string name = std::filesystem::path(p.pipeline_parallel_schedule).filename().string();
  if (const int64_t stages = p.pipeline_parallel_stages_per_rank; stages > 0) {
    name += fmt::format(" with {} per rank", counted(stages, "stage"));
  }
  if (p.pipeline_parallel_layers == std::vector<int64_t>{-1}) name += ", layers by cost";
  return p.vocabulary_parallel == "none" ? name : fmt::format("{}, vocabulary {}", name, p.vocabulary_parallel);
}

std::vector<StageFlops> count_stage_flops(const Config& config, const Architecture& a,
                                          const std::vector<Stage>& stages) {
  const Recomputation recompute = make_recomputation(config);
  const LayerFlops layer(a, config.training.seq_len, recompute);
  std::vector<StageFlops> flops;
  for (const Stage& stage : stages) {
    const int64_t recomputing = recompute.num_layers(stage.layers.begin, stage.layers.end);
    flops.push_back(stage_flops(layer, static_cast<double>(stage.layers.size()), static_cast<double>(recomputing),
                                stage.last && !shards_vocabulary(config)));
  }
  return flops;
}

Durations estimate_durations(const Sharding& sharding, const std::vector<Stage>& stages) {
  using enum ActionKind;
  const std::vector<StageFlops> flops = count_stage_flops(sharding.config, sharding.architecture, stages);
  const double ranks = sharding.mesh.axis_size(kPipeline);
  const double head =
      sharding.vocabulary.empty() ? 0 : LayerFlops(sharding.architecture, sharding.config.training.seq_len).head;
  double forward = 3 * head;
  for (const StageFlops& stage : flops) forward += stage.forward;
  const double unit = forward / ranks;
  const double product = head / ranks / unit;  // one product over a rank's vocabulary rows; the head has three
  // The logits take 1 product, in S. For each number kept of a logit, the gradients of the input and of the weight take
  // 1 product each: T makes both; with TW, S makes the input's and TW the weight's.
  const int each = make_output_loss(sharding.config).kept_of_logit(),
            early = sums_input_gradient_early(sharding) ? each : 0;
  Durations durations;
  for (const StageFlops& stage : flops) {
    durations.stage_times.push_back(Durations::of(stage.forward / unit, stage.input / unit, stage.weights / unit)
                                        .with(S, (1 + early) * product)
                                        .with(T, 2 * each * product)
                                        .with(TW, each * product)
                                        .times);
  }
  return durations;
}

namespace {

int64_t microbatches_of(const Config& config, const Mesh& mesh) {
  return num_microbatches(config.training.global_batch_size, config.training.local_batch_size,
                          mesh.group_size(batch_axes(mesh)));
}

// Throws Refusal if optimizer.in_backward is set and the schedule has several stages, or a rank several microbatches in
// a step: it would have to keep their gradients and add them up.
void require_one_microbatch(const Config& config, const Mesh& mesh, int64_t stages) {
  constexpr const char* kKey = "optimizer.in_backward";
  if (!config.optimizer.in_backward) return;
  if (stages > 1) {
    const bool one_rank = mesh.axis_size(kPipeline) == 1;
    refuse(config, kKey,
           fmt::format("requires a pipeline of 1 stage, but {} makes {}, because this version does not update in "
                       "backward in a pipeline",
                       config.locate(one_rank ? kScheduleKey : kDegreeKey), stages),
           {one_rank ? kScheduleKey : kDegreeKey}, {1});
  }
  const int64_t microbatches = microbatches_of(config, mesh);
  if (microbatches == 1) return;
  const int num_data_shards = mesh.group_size(batch_axes(mesh));
  const double sequences = static_cast<double>(config.training.global_batch_size) / num_data_shards;
  refuse(config, kKey,
         fmt::format("requires one microbatch in a step, because the gradients of several are added up before the "
                     "update, but {} and {} make {} microbatches on each data shard",
                     config.locate("training.global_batch_size"), config.locate("training.local_batch_size"),
                     microbatches),
         {"training.local_batch_size"}, {std::ceil(sequences)});
}

// Throws Refusal if a schedule of these stages has too many passes. Stages that are split into units have at most one
// unit for each layer, one for each of themselves, and the two ends of the model.
void require_countable_passes(const Config& config, int64_t stages, int64_t microbatches) {
  if (has_gradients_by_unit(config)) stages += config.model.num_hidden_layers + 2;
  if (stages <= kMostStageMicrobatches / microbatches) return;
  throw Refusal(fmt::format("{}, {} and {}: stages x microbatches = {} x {} must be at most {}",
                            config.locate(kScheduleKey), config.locate("training.global_batch_size"),
                            config.locate("training.local_batch_size"), stages, microbatches, kMostStageMicrobatches),
                {"training.local_batch_size", "training.global_batch_size"});
}

// Returns the stages of a rank under a named schedule. Throws Refusal if its ranks, layers or microbatches cannot carry
// it out.
int64_t stages_per_rank(const Config& config, const Mesh& mesh) {
  const auto& p = config.parallelism;
  const PipelineSchedule& known = pipeline_schedule(p.pipeline_parallel_schedule);
  const int64_t asked = p.pipeline_parallel_stages_per_rank, stages = asked > 0 ? asked : known.stages_per_rank;
  const int64_t layers = config.model.num_hidden_layers, ranks = mesh.axis_size(kPipeline);
  if (stages != known.stages_per_rank && !known.any_stages) {
    refuse(config, kStagesKey,
           fmt::format("must be 0 or {} with {}", known.stages_per_rank, config.locate(kScheduleKey)), {kScheduleKey},
           {0});
  }
  // A stage may be without layers, but a rank needs no more stages than the model has layers.
  if (asked > std::max<int64_t>(layers, known.stages_per_rank)) {
    refuse(config, kStagesKey, fmt::format("must be at most {}", config.locate(kLayersOfModel)), {kLayersOfModel},
           {static_cast<double>(layers), static_cast<double>(asked)});
  }
  require_countable_passes(config, stages * ranks, microbatches_of(config, mesh));
  return stages;
}

// Returns the run file's schedule: computations and messages. It has the extra warm-up forwards that with_vocabulary()
// needs. A CSV file is read and validated.
Schedule schedule_of(const Config& config, const Mesh& mesh) {
  const auto& p = config.parallelism;
  const int ranks = mesh.axis_size(kPipeline);
  const auto microbatches = static_cast<int>(microbatches_of(config, mesh));
  if (p.pipeline_parallel_schedule.ends_with(".csv")) {
    Schedule schedule = read_schedule(config, ranks, mesh.group_size(batch_axes(mesh)), microbatches);
    require_countable_passes(config, stage_count(schedule), microbatches);
    return schedule;
  }
  const auto stages = static_cast<int>(stages_per_rank(config, mesh));
  if (p.vocabulary_parallel == "interlaced") return add_messages(interlaced(ranks, microbatches));
  // All passes count as equally long here. fit_to_stages() makes the schedule again for the stages' durations, which
  // are known once the layers are split into stages.
  return add_messages(pipeline_schedule(p.pipeline_parallel_schedule)
                          .make({.ranks = ranks,
                                 .stages_per_rank = stages,
                                 .microbatches = microbatches,
                                 .extra_warmup_forwards = count_extra_warmup_forwards(config, stages)}));
}

// Checks the layers that the run file gives to each of `stages` stages.
void check_layers(const Config& config, int64_t stages) {
  const std::vector<int64_t>& cut = config.parallelism.pipeline_parallel_layers;
  if (cut.empty() || cut == std::vector<int64_t>{-1}) return;
  const int64_t layers = config.model.num_hidden_layers;
  const auto [least, most] = std::minmax_element(cut.begin(), cut.end());
  const auto refuse_layers = [&](const std::string& law, const std::vector<std::string>& others = {}) {
    refuse(config, kLayersKey, law, others);
  };
  if (*least < 0) refuse_layers("must have 0 layers or more for each stage; [-1] alone splits the layers by cost");
  if (*most > layers) refuse_layers(fmt::format("must add up to {}", config.locate(kLayersOfModel)));
  if (std::ssize(cut) != stages) {
    refuse_layers(fmt::format("must name all {}, not {}", counted(stages, "stage"), cut.size()));
  }
  const int64_t sum = std::accumulate(cut.begin(), cut.end(), int64_t{0});
  if (sum != layers) refuse_layers(fmt::format("must add up to {}, not to {}", config.locate(kLayersOfModel), sum));
}

// Completes the schedule, which assumes equal durations, with the passes of the sharded vocabulary. The schedule that
// its generator makes for the stages' mean durations replaces it, if that is faster and no rank then holds more. This
// matters for generators that place W by durations.
Schedule fit_to_stages(const Schedule& schedule, const Sharding& sharding, const std::vector<Stage>& stages,
                       const Durations& durations) {
  const auto complete = [&](const Schedule& own) {
    return sharding.vocabulary.empty() ? own : with_vocabulary(sharding, own, durations);
  };
  Schedule equal = complete(schedule);
  const auto& p = sharding.config.parallelism;
  const std::string& name = p.pipeline_parallel_schedule;
  if (name.ends_with(".csv") || p.vocabulary_parallel == "interlaced") return equal;
  if (!pipeline_schedule(name).uses_durations) return equal;
  const auto ranks = static_cast<int>(schedule.rows.size()), stages_of_rank = static_cast<int>(stages.size()) / ranks;
  StageFlops all;
  for (const StageFlops& stage : count_stage_flops(sharding.config, sharding.architecture, stages)) {
    all.forward += stage.forward, all.input += stage.input, all.weights += stage.weights;
  }
  const Schedule fitted = add_messages(pipeline_schedule(name).make(
      {.ranks = ranks,
       .stages_per_rank = stages_of_rank,
       .microbatches = microbatch_count(schedule),
       .durations = Durations::of(all.forward, all.input, all.weights),
       .extra_warmup_forwards = count_extra_warmup_forwards(sharding.config, stages_of_rank)}));
  if (fitted == schedule) return equal;
  Schedule other = complete(fitted);
  const Timeline now = simulate(equal, durations), then = simulate(other, durations);
  const bool holds_more = !std::ranges::equal(then.peak_in_flight, now.peak_in_flight, std::less_equal<>());
  return holds_more || then.makespan >= now.makespan ? equal : other;
}

// Splits the layers over the stages, in stage order. By default stages are as equal as possible, and the first ones
// have one layer more. The run file may list the layers of each stage. With -1, or vocabulary_parallel =
// "redistribution", the split minimizes the cost of the costliest rank.
std::vector<Stage> stages_of(const Config& config, const std::vector<int>& stage_owner, const Architecture& a) {
  const auto count = static_cast<int64_t>(stage_owner.size());
  const int64_t layers = a.num_hidden_layers;
  std::vector<int64_t> cut = config.parallelism.pipeline_parallel_layers;
  if (config.parallelism.vocabulary_parallel == "redistribution") cut = {-1};
  if (cut == std::vector<int64_t>{-1}) {
    const Recomputation recompute = make_recomputation(config);
    const LayerFlops flops(a, config.training.seq_len, recompute);
    const double recomputing = static_cast<double>(recompute.num_layers(0, layers)) / static_cast<double>(layers);
    const double layer = stage_flops(flops, 1, recomputing, false).sum();  // the mean of all layers
    cut = split_by_cost(layers, stage_owner, stage_flops(flops, 0, 0, !shards_vocabulary(config)).sum() / layer);
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

// Splits the stages into units, whose gradients and weights are reduced and gathered together.
void split_into_units(Pipeline& pipeline) {
  const bool has_ends = pipeline.vocabulary.empty();  // otherwise the vocabulary's rows belong to no stage
  std::vector<Stage> units;
  std::vector<int> parts;
  for (const Stage& stage : pipeline.stages) {
    const size_t before = units.size();
    const auto add = [&](int64_t begin, int64_t end) {
      units.push_back({.owner = stage.owner, .layers = {begin, end}, .continues = units.size() > before});
    };
    if (stage.first && has_ends) add(stage.layers.begin, stage.layers.begin);
    for (int64_t layer = stage.layers.begin; layer < stage.layers.end; ++layer) add(layer, layer + 1);
    if ((stage.last && has_ends) || units.size() == before) add(stage.layers.end, stage.layers.end);
    parts.push_back(static_cast<int>(units.size() - before));
  }
  units.front().first = true, units.back().last = true;
  pipeline.stages = std::move(units);
  pipeline.passes = split_stages(pipeline.passes, parts);
}

}  // namespace

void check_pipeline(const Config& config, const Mesh& mesh) {
  const int64_t stages = stages_per_rank(config, mesh) * mesh.axis_size(kPipeline);
  require_one_microbatch(config, mesh, stages);
  check_layers(config, stages);
}

Pipeline make_pipeline(Sharding sharding) {
  Pipeline pipeline{std::move(sharding)};
  const Schedule schedule = schedule_of(pipeline.config, pipeline.mesh);
  require_one_microbatch(pipeline.config, pipeline.mesh, stage_count(schedule));
  check_layers(pipeline.config, stage_count(schedule));
  pipeline.stages = stages_of(pipeline.config, schedule.stage_owner, pipeline.architecture);
  pipeline.passes =
      fit_to_stages(schedule, pipeline, pipeline.stages, estimate_durations(pipeline, pipeline.stages));
  if (pipeline.has_gradients_by_unit()) split_into_units(pipeline);
  return pipeline;
}

bool Pipeline::ends_are_apart() const {
  return std::ranges::count_if(stages, [](const Stage& stage) { return !stage.continues; }) > 1;
}

int Pipeline::stage_of(const ParameterInfo& parameter) const {
  const auto before = [&](const Stage& stage) { return stage.layers.end <= parameter.layer; };
  return static_cast<int>(std::partition_point(stages.begin(), stages.end() - 1, before) - stages.begin());
}

std::vector<Stage> Pipeline::stages_on(int rank) const {
  std::vector<Stage> own;
  for (const Stage& stage : stages) {
    if (stage.owner == pipeline_rank(rank)) own.push_back(stage);
  }
  return own;
}

}  // namespace orthant
