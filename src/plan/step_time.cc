#include "plan/step_time.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/exact_sum.h"
#include "config/from_config.h"
#include "model/optimizer_plan.h"
#include "plan/collective_time.h"
#include "plan/plan.h"
#include "schedule/shared_cores.h"

namespace orthant {
namespace {

// The rank that stands for all ranks with this pipeline coordinate.
int representative(const Mesh& mesh, int pipeline_rank) { return mesh.rank_at(0, kPipeline, pipeline_rank); }

double bucket_seconds(const ParameterPlacement& plan, CollectiveKind kind, const GradientBucket& bucket,
                      const Moved& bytes) {
  return collective_seconds(plan.mesh, *plan.facts.hardware, kind, bucket.axes, 1, bytes);
}

double reduction_seconds(const ParameterPlacement& plan, int rank, const GradientBucket& bucket) {
  if (bucket.elements.size() == 0 || plan.mesh.group_size(bucket.axes) == 1) return 0;
  const int master = master_bytes(plan.config);
  if (!plan.shards_optimizer()) {
    return bucket_seconds(plan, CollectiveKind::all_reduce, bucket, reduction_bytes(plan.mesh, bucket, master, rank));
  }
  return bucket_seconds(plan, CollectiveKind::reduce_scatter, bucket,
                        reduce_scatter_bytes(plan.mesh, bucket, master, rank));
}

double gather_seconds(const ParameterPlacement& plan, int rank, const GradientBucket& bucket) {
  if (bucket.elements.size() == 0 || plan.mesh.group_size(bucket.axes) == 1) return 0;
  return bucket_seconds(plan, CollectiveKind::all_gather, bucket,
                        all_gather_bytes(plan.mesh, bucket, dtype_bytes(plan.config.training.dtype), rank));
}

// Returns the fraction of the stage's backward after which the bucket's gradients are complete: backward runs from the
// stage's last layer to its first. The head's gradients are complete before it, the embedding's at its end.
double complete_after(const ParameterPlacement& plan, const FlatLayout& flat, const Stage& stage,
                      const GradientBucket& bucket) {
  int64_t layer = plan.architecture.num_hidden_layers;
  for (const int weight : bucket.weights) {
    const size_t first = flat.members[static_cast<size_t>(weight)].first;
    layer = std::min<int64_t>(layer, plan.parameters[first].layer);
  }
  const double layers = static_cast<double>(stage.layers.size());
  if (layers == 0) return 1;
  return std::clamp(static_cast<double>(stage.layers.end - layer) / layers, 0.0, 1.0);
}

// Returns the seconds of the gradient norm and of the optimizer on the elements that the rank owns.
double update_seconds(const ParameterPlacement& plan, const ParameterShard& held, int rank) {
  const Config& config = plan.config;
  const int master = master_bytes(config), element = dtype_bytes(config.training.dtype);
  const auto owned =
      static_cast<double>(plan.shards_optimizer() ? held.chunk_elements(plan.mesh, rank) : held.elements);
  const double states = static_cast<double>(optimizer_spec(config.optimizer).state.size());
  // The norm reads the gradients. The optimizer reads them again, and reads and writes weights and state.
  const double bytes = owned * (master * (1 + 1 + 2 + 2 * states) + (element == master ? 0 : element));
  double seconds = kernel_seconds(*plan.facts.hardware, bytes);
  if (config.optimizer.name != "muon") return seconds;
  // Five steps of Newton and Schulz, with three products each, for this rank's part of the matrices of a block.
  const double owners = plan.shards_optimizer() ? plan.mesh.group_size(plan.gradient_axes) : 1;
  const double ranks = owners * plan.mesh.group_size(plan.matrix_axes) * plan.mesh.axis_size(kPipeline);
  for (const ParameterInfo& parameter : plan.parameters) {
    if (!is_updated_as_matrix(config.optimizer, parameter)) continue;
    const auto [least, most] = std::ranges::minmax(parameter.shape);
    const auto product = [&](int64_t m, int64_t k, int64_t n) {
      return product_seconds(*plan.facts.hardware, ProductKind::forward, m, k, n, config.training.dtype);
    };
    seconds += 5 * (product(least, most, least) + product(least, least, least) + product(least, least, most)) / ranks;
  }
  return seconds;
}

// With post-validation, the sum over the pipeline ranks is a chain of STEP and FINALIZE.
double statistics_seconds(const ParameterPlacement& plan) {
  Axes axes = all_axes(plan.mesh);
  if (plan.post_validates()) std::erase(axes, kPipeline);
  const CollectiveKind kind = small_sum(plan.mesh.group_size(axes));
  const Moved bytes = kind == CollectiveKind::all_reduce_by_tree
                          ? Moved{StepSignals::kBytes, StepSignals::kBytes}
                          : reduction_bytes(plan.mesh, {{0, StepSignals::kElements}, {}, axes}, sizeof(double), 0);
  return collective_seconds(plan.mesh, *plan.facts.hardware, kind, axes, 1, bytes);
}

// Returns the seconds after the update in which the rank gathers the weights that no Action gathers.
double weight_gather_seconds(const ParameterPlacement& plan, const ParameterShard& held, int rank) {
  if (!plan.shards_optimizer()) return 0;
  double seconds = 0;
  for (size_t bucket = 0; bucket < held.buckets.size(); ++bucket) {
    const bool by_actions = plan.shards_weights() && plan.belongs_to_unit(bucket);
    if (!by_actions) seconds += gather_seconds(plan, rank, held.buckets[bucket]);
  }
  return seconds;
}

// Returns the seconds in which the chunks of sharded gradients are summed over their copies.
double copy_seconds(const ParameterPlacement& plan, const ParameterShard& held, int rank) {
  const Axes axes = plan.copy_axes();
  if (axes.empty()) return 0;
  double seconds = 0;
  for (const GradientBucket& bucket : held.buckets) {
    if (bucket.elements.size() == 0) continue;
    const Range chunk = bucket.chunk(plan.mesh.group_index(rank, bucket.axes));
    if (chunk.size() == 0) continue;
    const Moved bytes = reduction_bytes(plan.mesh, {{0, chunk.size()}, {}, axes}, master_bytes(plan.config), rank);
    seconds += collective_seconds(plan.mesh, *plan.facts.hardware, CollectiveKind::all_reduce, axes, 1, bytes);
  }
  return seconds;
}

// Returns the seconds in which the rank copies its masters and optimizer state before an update that may be undone. The
// last pipeline rank never undoes one.
double backup_seconds(const ParameterPlacement& plan, const ParameterShard& held, int rank) {
  if (!plan.post_validates() || plan.pipeline_rank(rank) + 1 == plan.mesh.axis_size(kPipeline)) return 0;
  const auto owned =
      static_cast<double>(plan.shards_optimizer() ? held.chunk_elements(plan.mesh, rank) : held.elements);
  const double states = static_cast<double>(optimizer_spec(plan.config.optimizer).state.size());
  return kernel_seconds(*plan.facts.hardware, 2 * owned * master_bytes(plan.config) * (1 + states));
}

// The work of a rank after its passes.
struct AfterPasses {
  AfterPasses(const ParameterPlacement& plan, const ParameterShards& held, int rank)
      : reductions(copy_seconds(plan, held.of(rank), rank)),
        update(backup_seconds(plan, held.of(rank), rank) + update_seconds(plan, held.of(rank), rank)),
        gathers(statistics_seconds(plan) + weight_gather_seconds(plan, held.of(rank), rank)) {}
  double reductions, update, gathers;
};

// The parts of all passes of the pipeline rank's row.
TimeParts parts_of_row(const ParameterPlacement& plan, int pipeline_rank) {
  const DataShard& shard = plan.data_shards.front();
  TimeParts sum;
  for (const auto& [sequences, count] : microbatch_sizes(shard)) {
    const PassTimer timer(plan, sequences);
    const auto times = static_cast<double>(count);
    for (const Stage& stage : plan.stages) {
      if (stage.owner != pipeline_rank) continue;
      const PassTimes passes = timer.stage(stage);
      sum.add(passes.forward, times).add(passes.input, times).add(passes.weights, times);
    }
    if (plan.vocabulary.empty()) continue;
    const VocabularyTimes own = timer.vocabulary();
    for (const TimeParts* parts : {&own.logits, &own.exponentials, &own.gradients, &own.lookup, &own.scatter}) {
      sum.add(*parts, times);
    }
  }
  return sum;
}

// The number of ranks of each pipeline rank on a host, for every kind of host.
std::set<std::vector<int64_t>> ranks_of_rows(const Mesh& mesh, int64_t per_host) {
  const GroupPositions pipeline(mesh, kOverPipeline);
  std::set<std::vector<int64_t>> hosts;
  for (int64_t first = 0; first < mesh.size(); first += per_host) {
    std::vector<int64_t> host(static_cast<size_t>(pipeline.size()));
    const int64_t end = std::min<int64_t>(first + per_host, mesh.size());
    for (int64_t rank = first; rank < end; ++rank) ++host[static_cast<size_t>(pipeline.of(static_cast<int>(rank)))];
    hosts.insert(std::move(host));
  }
  return hosts;
}

// Adds the time for which ranks wait for cores, if they share them. The slowest host counts.
void share_cores(const ParameterPlacement& plan, const Timeline& timeline, double last_pass, StepTime& time) {
  const DeviceTable& device = plan.facts.hardware->device;
  if (device.shared_cores == 0) return;
  const bool crosses_hosts = group_on_hosts(plan.mesh, *plan.facts.hardware, plan.gradient_axes).hosts > 1;
  const Collectives collectives = crosses_hosts ? Collectives::waiting_for_link : Collectives::copying;
  double until_last_pass = last_pass, whole = timeline.makespan;
  for (const std::vector<int64_t>& host : ranks_of_rows(plan.mesh, device.per_host)) {
    const auto seconds_until = [&](double until_s) {
      return seconds_on_shared_cores(timeline, until_s, host, device.shared_cores, collectives);
    };
    until_last_pass = std::max(until_last_pass, seconds_until(last_pass));
    whole = std::max(whole, seconds_until(timeline.makespan));
  }
  // The factor of work that all ranks do at the same time.
  const double factor = ranks_per_core(*plan.facts.hardware, plan.mesh), of_messages = crosses_hosts ? 1 : factor;
  time.sharing = until_last_pass - last_pass;
  const double after_row = time.reductions - (timeline.makespan - last_pass);
  time.reductions = std::max(0.0, whole - until_last_pass) + of_messages * after_row;
  time.update *= factor;
  time.gathers *= of_messages;
}

}  // namespace

double StepTime::exposed_communication() const {
  double sum = reductions + gathers;
  for (const auto& [axis, exposed] : passes.communication) sum += exposed;
  return sum;
}

std::vector<std::pair<std::string, double>> StepTime::named_parts() const {
  std::vector<std::pair<std::string, double>> parts = {
      {"matrix products", passes.products}, {"attention", passes.attention}, {"other kernels", passes.kernels}};
  for (const auto& [axis, exposed] : passes.communication) parts.emplace_back("messages over " + axis, exposed);
  parts.insert(parts.end(), {{"idle", idle},
                             {"waits for cores that ranks share", sharing},
                             {"gradient reductions", reductions},
                             {"update", update},
                             {"gathers after the update", gathers}});
  return parts;
}

Durations action_seconds(const ParameterPlacement& plan, const ParameterShards& held) {
  Durations durations = pass_seconds(plan, plan.stages);
  const FlatLayout flat = flat_layout(plan.parameters);
  const std::vector<std::vector<int>> by_stage = plan.buckets_by_stage();
  for (size_t stage = 0; stage < by_stage.size(); ++stage) {
    const int rank = representative(plan.mesh, plan.stages[stage].owner);
    auto& reductions = durations.reductions.emplace_back();
    double& unshard = durations.stage_times[stage][static_cast<size_t>(ActionKind::UNSHARD)];
    for (const int index : by_stage[stage]) {
      const auto bucket = static_cast<size_t>(index);
      const GradientBucket& own = held.of(rank).buckets[bucket];
      const bool early = !plan.has_gradients_by_unit() && plan.bucket_stages[bucket] != kEveryStage;
      reductions.push_back({.duration = reduction_seconds(plan, rank, own)});
      if (early) reductions.back().complete_after = complete_after(plan, flat, plan.stages[stage], own);
      if (plan.shards_weights() && plan.belongs_to_unit(bucket)) unshard += gather_seconds(plan, rank, own);
    }
    if (plan.post_validates()) {
      const AfterPasses after(plan, held, rank);
      durations.stage_times[stage][static_cast<size_t>(ActionKind::STEP)] =
          after.reductions + after.update + after.gathers;
    }
  }
  return durations;
}

StepTime count_step_time(const ParameterPlacement& plan, const ParameterShards& held, const Timeline& timeline,
                         double row_interval) {
  StepTime time;
  const auto busiest = std::ranges::max_element(timeline.busy);
  const int pipeline_rank = static_cast<int>(busiest - timeline.busy.begin());
  const int own = representative(plan.mesh, pipeline_rank);
  time.passes = parts_of_row(plan, pipeline_rank);
  if (plan.post_validates()) {
    const AfterPasses after(plan, held, own);  // in STEP, which is a part of the row
    time.reductions = after.reductions, time.update = after.update, time.gathers = after.gathers;
    time.idle = std::max(0.0, row_interval - time.passes.seconds() - after.reductions - after.update - after.gathers);
    time.seconds = row_interval;
    return time;
  }
  double last_pass = 0;  // end of the last pass of any rank
  for (const Span& span : timeline.spans) {
    if (span.stream == Stream::compute) last_pass = std::max(last_pass, span.end);
  }
  time.idle = std::max(0.0, last_pass - time.passes.seconds());
  time.reductions = timeline.makespan - last_pass + copy_seconds(plan, held.of(own), own);
  for (int at = 0; at < plan.mesh.axis_size(kPipeline); ++at) {  // the slowest pipeline rank updates the most
    const AfterPasses after(plan, held, representative(plan.mesh, at));
    time.update = std::max(time.update, after.update), time.gathers = std::max(time.gathers, after.gathers);
  }
  share_cores(plan, timeline, last_pass, time);
  time.seconds = last_pass + time.sharing + time.reductions + time.update + time.gathers;
  return time;
}

double model_flops_utilization(const Sharding& sharding, double step_seconds, bool all_pairs) {
  Architecture a = sharding.architecture;
  if (all_pairs) a.objective = "masked", a.sliding_window = 0;
  const double flops =
      training_flops_per_token(a, sharding.config.training.seq_len) * static_cast<double>(sharding.tokens_per_step());
  const Hardware& hardware = *sharding.facts.hardware;
  const double peak = peak_flop_per_s(hardware, sharding.config.training.dtype);
  return flops / (step_seconds * peak * sharding.mesh.size() / ranks_per_core(hardware, sharding.mesh));
}

}  // namespace orthant
