// Chooses the layout of every parameter by its role, and groups parameters by the axes of their layout and reduction.
// Places the groups in flat buffers and buckets.
#include "plan/placement.h"

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "config/from_config.h"
#include "parallel/pipeline/post_validation_plan.h"
#include "parallel/tensor/muon_plan.h"
#include "plan/held_buckets.h"
#include "schedule/barriers.h"
#include "schedule/passes.h"
#include "schedule/validate.h"

namespace orthant {
namespace {

Layout layout_on_any_mesh(const ParameterInfo& parameter, const Sharding& plan) {
  Layout layout = unsharded_layout(static_cast<int>(parameter.shape.size()));
  switch (parameter.role) {
    case ParameterRole::projection:  // its rows stand for tokens, and are sharded as these are over the ring
      layout.split[0] = {kRing};
      return layout;
    case ParameterRole::head_gain:
      return layout;
    case ParameterRole::from_stream_bias:  // sharded as the rows of its matrix
      layout.split[0] = {kColumn};
      return layout;
    case ParameterRole::gain:
    case ParameterRole::norm_bias:
    case ParameterRole::position:
    case ParameterRole::to_stream_bias:  // sharded as the width of the residual stream
      if (plan.tensor.stream == StreamSharding::width) layout.split.back() = {kColumn};
      return layout;
    case ParameterRole::to_stream:
      return weight_layout(
          stationary_of(plan.tensor, {.in = parameter.shape[1], .out = parameter.shape[0], .to_stream = true}));
    case ParameterRole::embedding:
    case ParameterRole::head:
      layout = weight_layout(Stationary::output);
      if (!plan.vocabulary.empty()) layout.split[0].insert(layout.split[0].begin(), kPipeline);
      return layout;
    case ParameterRole::from_stream:
      return weight_layout(Stationary::output);
  }
  throw LogicError("a parameter without a role: " + parameter.name);
}

// Returns the layout of a parameter, without axes of one rank, which shard nothing.
Layout layout_of(const ParameterInfo& parameter, const Sharding& plan) {
  Layout layout = layout_on_any_mesh(parameter, plan);
  for (auto& axes : layout.split) {
    std::erase_if(axes, [&](const std::string& axis) { return plan.mesh.axis_size(axis) == 1; });
  }
  return layout;
}

// Returns the axes over which gradients are partial sums.
std::vector<std::string> gradient_axes(const Sharding& plan) {
  std::vector<std::string> axes = kOverData;
  if (plan.tensor.depth > 1) axes.emplace_back(kDepth);
  if (plan.tensor.rows > 1) axes.emplace_back(kRow);
  if (plan.tensor.columns > 1 && plan.tensor.stream == StreamSharding::tokens) axes.emplace_back(kColumn);
  if (plan.sequence.ulysses > 1) axes.push_back(kUlysses);
  if (plan.sequence.ring > 1) axes.push_back(kRing);
  return axes;
}

// Returns the axes that shard the matrices that Muon updates.
std::vector<std::string> matrix_axes(const ParameterPlacement& plan) {
  std::vector<size_t> matrices;
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    if (plan.is_updated_as_matrix(i)) matrices.push_back(i);
  }
  return axes_of_matrices(plan.mesh, matrices, plan.layouts);
}

// Returns the axes over which the gradient of a parameter would be a partial sum if the parameter were not sharded.
// Columns are among them for a Linformer projection and for the gains of heads, because the heads of each column use
// all of these.
std::vector<std::string> gradient_axes_of(const ParameterInfo& parameter, const ParameterPlacement& plan) {
  std::vector<std::string> axes = plan.gradient_axes;
  const bool known = std::find(axes.begin(), axes.end(), kColumn) != axes.end();
  const bool used_by_heads =
      parameter.role == ParameterRole::projection || parameter.role == ParameterRole::head_gain;
  if (used_by_heads && plan.tensor.columns > 1 && !known) axes.emplace_back(kColumn);
  return axes;
}

// Sets ParameterInfo::held to the ranges that a rank holds. Stages::all: as if the rank owned every stage. Stages::own:
// parameters of other ranks' stages get an empty range.
enum class Stages { all, own };
void hold(const ParameterPlacement& plan, int rank, Stages which, std::vector<ParameterInfo>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& shape = parameters[i].shape;
    auto& held = parameters[i].held;
    held.clear();
    if (!plan.groups[static_cast<size_t>(parameters[i].group)].split.empty()) {
      for (const Range& range : local_ranges(plan.mesh, plan.layouts[i], shape, rank))
        held.emplace_back(range.begin, range.end);
    }
    if (which == Stages::all || plan.holds(rank, i)) continue;
    if (held.empty()) {
      for (const int64_t extent : shape) held.emplace_back(0, extent);
    }
    held.front() = {0, 0};
  }
}

// Returns the axes along which ranks hold different parameter shards.
Axes axes_of_shards(const ParameterPlacement& plan) {
  Axes axes;
  for (const Axis& axis : plan.mesh.axes) {
    const bool stages_differ = axis.name == kPipeline && plan.stages.size() > 1;
    const bool splits = std::ranges::any_of(plan.groups, [&](const ParameterGroup& group) {
      return std::ranges::find(group.split, axis.name) != group.split.end();
    });
    if (splits || stages_differ) axes.push_back(axis.name);
  }
  return axes;
}

// Groups the parameters by layout and reduction. A tied head on several stages becomes a parameter of its own.
void lay_out_parameters(ParameterPlacement& plan) {
  plan.groups = {{plan.gradient_axes, {}}};
  // Over several stages a tied head is a copy of the table. If the vocabulary is sharded over the pipeline, each rank
  // uses its rows for both layers, and no copy is needed.
  if (plan.architecture.tie_word_embeddings && plan.ends_are_apart() && plan.vocabulary.empty()) {
    const ParameterInfo& table = plan.parameters.front();
    ParameterInfo head = table;
    head.name = "lm_head.weight";
    head.layer = static_cast<int>(plan.architecture.num_hidden_layers);
    head.role = ParameterRole::head;
    head.copy_of = table.name;
    plan.parameters.push_back(std::move(head));
  }
  for (ParameterInfo& parameter : plan.parameters) {
    const Layout& layout = plan.layouts.emplace_back(layout_of(parameter, plan));
    ParameterGroup group{gradient_axes_of(parameter, plan), {}, plan.stage_of(parameter)};
    for (const auto& axes : layout.split) {
      for (const std::string& axis : axes) {
        std::erase(group.reduced, axis);
        group.split.push_back(axis);
      }
    }
    if (std::ranges::find(group.split, kPipeline) != group.split.end()) group.stage = kEveryStage;
    // The search runs backwards, because the group is usually that of the previous parameter.
    const auto known = std::find(plan.groups.rbegin(), plan.groups.rend(), group);
    const bool is_new = known == plan.groups.rend();
    parameter.group = static_cast<int>(is_new ? plan.groups.size() : plan.groups.rend() - known - 1);
    if (is_new) plan.groups.push_back(std::move(group));
  }
}

void make_buckets(ParameterPlacement& plan) {
  const double bucket_bytes = std::min(plan.config.parallelism.bucket_mib, 1e9) * (1 << 20);
  const auto elements = static_cast<int64_t>(bucket_bytes / master_bytes(plan.config));
  std::vector<ParameterInfo> held = plan.parameters;
  hold(plan, 0, Stages::all, held);
  const GradientOffsets positions = gradient_offsets(plan, flat_layout(held));
  const FlatLayout flat = flat_layout(plan.parameters);
  // Two stages exchange the gradients of a tied table. In a bucket of its own it has the same chunks on both.
  std::set<int> tied;
  for (const auto& [original, copy] : plan.tied_pairs()) {
    for (size_t w = 0; w < flat.members.size(); ++w) {
      if (flat.members[w].first == original || flat.members[w].first == copy) tied.insert(static_cast<int>(w));
    }
  }
  plan.buckets = gradient_buckets(positions.weights, positions.regions, std::max<int64_t>(1, elements), tied);
  for (const GradientBucket& bucket : plan.buckets) {
    const size_t first = flat.members[static_cast<size_t>(bucket.weights.front())].first;
    plan.bucket_stages.push_back(plan.groups[static_cast<size_t>(plan.parameters[first].group)].stage);
  }
}

// Adds the reductions of the buckets, with post-validation the steps, and the gathers of sharded weights.
Schedule complete_schedule(const ParameterPlacement& plan) {
  std::vector<int> buckets;
  for (const auto& of_stage : plan.buckets_by_stage()) buckets.push_back(static_cast<int>(of_stage.size()));
  Schedule schedule = add_reductions(plan.passes, buckets);
  if (plan.has_gradients_by_unit()) {
    const bool each_microbatch = reduces_each_microbatch(plan.config.parallelism.zero_stage, plan.reshard());
    schedule = reduce_after_backward(schedule, plan.units(), each_microbatch);
  }
  std::vector<bool> continues;
  for (const Stage& stage : plan.stages) continues.push_back(stage.continues);
  if (plan.post_validates()) schedule = with_post_validation(schedule, continues);
  for (auto& row : schedule.rows) row = plan.with_gathers(row);
  const auto& training = plan.config.training;
  const int shards = plan.mesh.group_size(batch_axes(plan.mesh));
  validate(schedule, num_microbatches(training.global_batch_size, training.local_batch_size, shards), buckets);
  return schedule;
}

}  // namespace

ParameterPlacement place_parameters(Pipeline pipeline) {
  ParameterPlacement placement{std::move(pipeline)};
  placement.parameters = parameter_table(placement.architecture);
  placement.gradient_axes = gradient_axes(placement);
  lay_out_parameters(placement);
  placement.matrix_axes = matrix_axes(placement);
  make_buckets(placement);
  placement.schedule = complete_schedule(placement);
  return placement;
}

ParameterShard::ParameterShard(const ParameterPlacement& plan, int rank, bool has_chunks) {
  const std::vector<ParameterInfo> held = plan.parameters_of(rank);
  for (const ParameterInfo& parameter : held) sizes.push_back(parameter.shard_size());
  flat = flat_layout(held);
  elements = flat.elements;
  buckets = held_buckets(plan, rank, flat, has_chunks);
}

std::vector<Range> ParameterShard::chunk_parts(const std::function<int(size_t bucket)>& position_of) const {
  std::vector<Range> parts(sizes.size());
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    const Range chunk = buckets[bucket].chunk(position_of(bucket));
    for (const int weight : buckets[bucket].weights) {
      const auto [first, end] = flat.members[static_cast<size_t>(weight)];
      for (size_t i = first; i < end; ++i) {
        const int64_t begin = flat.parameter_offsets[i];
        parts[i] = {std::clamp<int64_t>(chunk.begin - begin, 0, sizes[i]),
                    std::clamp<int64_t>(chunk.end - begin, 0, sizes[i])};
      }
    }
  }
  return parts;
}

int64_t ParameterShard::chunk_elements(const Mesh& mesh, int rank) const {
  int64_t sum = 0;
  for (const GradientBucket& bucket : buckets) {
    if (bucket.elements.size() > 0) sum += bucket.chunk(mesh.group_index(rank, bucket.axes)).size();
  }
  return sum;
}

ParameterShards::ParameterShards(const ParameterPlacement& plan) : positions_(plan.mesh, axes_of_shards(plan)) {
  // The layouts and shapes of all parameters, each once.
  std::vector<std::pair<Layout, std::vector<int64_t>>> kinds;
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const auto is_known = [&](const auto& kind) {
      return kind.second == plan.parameters[i].shape && kind.first == plan.layouts[i];
    };
    if (std::ranges::none_of(kinds, is_known)) kinds.emplace_back(plan.layouts[i], plan.parameters[i].shape);
  }
  // The shards of a rank follow from its stages and the shapes of its shards. Its chunks also follow from the shapes
  // on the first rank of its tensor mesh: see held_buckets().
  std::map<std::vector<int64_t>, std::shared_ptr<const ParameterShard>> known;
  for (int position = 0; position < positions_.size(); ++position) {
    const int rank = positions_.rank_at(position);
    std::vector<int64_t> key = {plan.pipeline_rank(rank)};
    for (const int of : {rank, plan.mesh.group(rank, {kColumn, kRow}).front()}) {
      for (const auto& [layout, shape] : kinds) {
        for (const int64_t extent : local_shape(plan.mesh, layout, shape, of)) key.push_back(extent);
      }
    }
    const auto [found, is_new] = known.try_emplace(std::move(key));
    if (is_new) found->second = std::make_shared<const ParameterShard>(plan, rank, plan.shards_optimizer());
    shards_.push_back(found->second);
  }
}

const std::shared_ptr<const ParameterShard>& ParameterShards::shared(int rank) const {
  return shards_[static_cast<size_t>(positions_.of(rank))];
}

std::vector<Range> ParameterPlacement::chunk_parts(int rank) const {
  const auto position_of = [&](size_t bucket) { return mesh.group_index(rank, buckets[bucket].axes); };
  return ParameterShard(*this, rank).chunk_parts(position_of);
}

std::vector<Range> ParameterPlacement::owned_parts(int rank) const {
  const auto position_of = [&](size_t bucket) { return mesh.group_index(rank, buckets[bucket].axes); };
  return owned_parts(ParameterShard(*this, rank), position_of);
}

std::vector<Range> ParameterPlacement::owned_parts(const ParameterShard& held,
                                                   const std::function<int(size_t bucket)>& position_of) const {
  if (shards_optimizer()) return held.chunk_parts(position_of);
  std::vector<Range> all;
  for (const int64_t size : held.sizes) all.push_back({0, size});
  return all;
}

std::vector<Range> ParameterPlacement::counted_in_norm(int rank) const {
  const auto has = [](const std::vector<std::string>& axes, const std::string& axis) {
    return std::ranges::find(axes, axis) != axes.end();
  };
  std::vector<Range> counted = chunk_parts(rank);
  for (size_t i = 0; i < counted.size(); ++i) {
    const ParameterGroup& group = groups[static_cast<size_t>(parameters[i].group)];
    // Along all other axes the replicas have the same gradient without a reduction; the first one counts it.
    const bool counts = parameters[i].copy_of.empty() && std::ranges::all_of(mesh.axes, [&](const Axis& axis) {
      return axis.name == kPipeline || has(group.reduced, axis.name) || has(group.split, axis.name) ||
             mesh.coord(rank, axis.name) == 0;
    });
    if (!counts) counted[i] = {};
  }
  return counted;
}

const std::vector<Action>& ParameterPlacement::row(int rank) const {
  return schedule.rows[static_cast<size_t>(pipeline_rank(rank))];
}

std::vector<ParameterInfo> ParameterPlacement::parameters_of(int rank) const {
  std::vector<ParameterInfo> held = parameters;
  hold(*this, rank, Stages::own, held);
  return held;
}

int ParameterPlacement::owner_of(size_t parameter) const {
  return stages[static_cast<size_t>(stage_of(parameters[parameter]))].owner;
}

bool ParameterPlacement::on_every_stage(size_t parameter) const {
  return groups[static_cast<size_t>(parameters[parameter].group)].stage == kEveryStage;
}

bool ParameterPlacement::is_updated_as_matrix(size_t parameter) const {
  return orthant::is_updated_as_matrix(config.optimizer, parameters[parameter]);
}

bool ParameterPlacement::holds(int rank, size_t parameter) const {
  return on_every_stage(parameter) || owner_of(parameter) == pipeline_rank(rank);
}

std::vector<std::vector<int>> ParameterPlacement::buckets_by_stage() const {
  const std::vector<int> first = first_stages(passes);
  std::vector<std::vector<int>> all(stages.size());
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    const auto add = [&](int stage) { all[static_cast<size_t>(stage)].push_back(static_cast<int>(bucket)); };
    if (bucket_stages[bucket] != kEveryStage) add(bucket_stages[bucket]);
    for (size_t rank = 0; rank < first.size() && bucket_stages[bucket] == kEveryStage; ++rank) add(first[rank]);
  }
  return all;
}

std::vector<std::pair<size_t, size_t>> ParameterPlacement::tied_pairs() const {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t copy = 0; copy < parameters.size(); ++copy) {
    for (size_t i = 0; i < parameters.size() && !parameters[copy].copy_of.empty(); ++i) {
      if (parameters[i].name == parameters[copy].copy_of) found.emplace_back(i, copy);
    }
  }
  return found;
}

bool ParameterPlacement::belongs_to_unit(size_t bucket) const {
  return has_gradients_by_unit() && bucket_stages[bucket] != kEveryStage;
}

ShardedUnits ParameterPlacement::units() const {
  ShardedUnits units{.forward = std::vector<std::vector<int>>(stages.size()), .backward = {}, .buckets = {}};
  const std::vector<std::vector<int>> by_stage = buckets_by_stage();
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    auto& own = units.buckets.emplace_back();
    for (size_t i = 0; i < by_stage[stage].size(); ++i) {
      if (belongs_to_unit(static_cast<size_t>(by_stage[stage][i]))) own.push_back(static_cast<int>(i));
    }
    if (!own.empty()) units.forward[stage].push_back(static_cast<int>(stage));
  }
  units.backward = units.forward;
  const bool shares_table = architecture.tie_word_embeddings && !ends_are_apart() && vocabulary.empty();
  if (shares_table && has_gradients_by_unit()) units.forward.back().push_back(0);
  return units;
}

std::vector<Action> ParameterPlacement::with_gathers(const std::vector<Action>& row) const {
  return shards_weights() ? add_gathers(row, units(), reshard()) : row;
}

std::vector<GradientBucket> ParameterPlacement::buckets_of(int rank) const {
  return held_buckets(*this, rank, flat_layout(parameters_of(rank)));
}

int ParameterPlacement::replica_leader(int rank) const {
  const GroupPositions positions(mesh, axes_of_shards(*this));
  return positions.rank_at(positions.of(rank));
}

}  // namespace orthant
