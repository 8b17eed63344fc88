#include "advice/layout_bounds.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "advice/zero_choices.h"
#include "config/from_config.h"
#include "parallel/pipeline/plan.h"
#include "plan/collective_time.h"
#include "plan/microbatch_memory.h"
#include "plan/pass_time.h"
#include "schedule/row_memory.h"

namespace orthant {
namespace {

constexpr int64_t kMaxTensorsPerLayer = 32;

int64_t volume_of(const ParameterInfo& parameter) {
  return std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
}

void add(ParameterTotals& totals, const ParameterTotals& others, double fraction) {
  totals.elements += fraction * others.elements;
  totals.state_bytes += fraction * others.state_bytes;
  if (fraction == 1) totals.largest = std::max(totals.largest, others.elements);
  totals.largest_part = std::max(totals.largest_part, fraction * others.elements);
}

}  // namespace

// The moment at which a row holds most of activations, messages between stages and temporaries. The ranks with the
// smallest shards of the batch and of the sequences count, so that the others hold no less.
struct LayoutBounds::PassesMemory {
  explicit PassesMemory(Pipeline the_pipeline)
      : pipeline(std::move(the_pipeline)),
        rows(pipeline.passes),
        known(static_cast<size_t>(pipeline.mesh.axis_size(kPipeline))) {}
  PassesMemory(const PassesMemory&) = delete;  // `rows` refers to `pipeline`

  const RowBytes& row_bytes(int row) {
    std::optional<RowBytes>& bytes = known[static_cast<size_t>(row)];
    if (bytes) return *bytes;
    const std::vector<Range>& microbatches = pipeline.data_shards.back().microbatches;
    const int last_of_row = pipeline.mesh.rank_at(pipeline.mesh.size() - 1, kPipeline, row);
    std::map<std::pair<int64_t, int>, MicrobatchBytes> microbatch_kinds;  // by number of sequences and stage
    const auto bytes_of = [&](int stage, int microbatch) {
      const int64_t sequences = microbatches[static_cast<size_t>(microbatch)].size();
      if (sequences == 0) return MicrobatchBytes();
      const auto [found, is_new] = microbatch_kinds.try_emplace({sequences, stage});
      if (is_new) {
        const MicrobatchMemory memory = microbatch_memory(pipeline, last_of_row, sequences);
        found->second = microbatch_bytes(memory, pipeline.stages[static_cast<size_t>(stage)],
                                         pipeline.architecture.dropout > 0, {});
      }
      return found->second;
    };
    return bytes.emplace(rows.profile(row, bytes_of).peak({}));
  }

  const Pipeline pipeline;
  const RowMemory rows;
  std::vector<std::optional<RowBytes>> known;  // by pipeline rank
};

double step_seconds_bound(const Config& config, const RunFacts& facts) {
  Config with_least = config;
  // If only every n-th layer recomputes, the rank with most layers may have none of these.
  if (config.activation_checkpoint.layers > 1) with_least.activation_checkpoint = {};
  const Sharding sharding = make_sharding(with_least, facts);
  std::map<int64_t, int> sizes;  // numbers of microbatches, by their sequences
  for (const Range& microbatch : sharding.data_shards.front().microbatches) ++sizes[microbatch.size()];
  const int64_t layers = sharding.architecture.num_hidden_layers, ranks = sharding.mesh.axis_size(kPipeline);
  const Range most = {0, (layers + ranks - 1) / ranks};
  const bool has_ends = ranks == 1;
  double seconds = 0;
  for (const auto& [sequences, count] : sizes) {
    if (sequences == 0) continue;
    const PassTimes passes =
        PassTimer(sharding, sequences).stage({.layers = most, .first = has_ends, .last = has_ends});
    seconds += count * (passes.forward.seconds() + passes.input.seconds() + passes.weights.seconds());
  }
  return seconds * (1 - kRoundingOfSums);
}

ModelParameters::ModelParameters(const Config& config, const RunFacts& facts) {
  const int master = master_bytes(config);
  for (const ParameterInfo& parameter : parameter_table(make_architecture(config, facts.vocab_size))) {
    if (parameter.role == ParameterRole::projection) continue;  // Linformer's may be sharded over the ring as well
    const bool of_vocabulary = parameter.role == ParameterRole::embedding || parameter.role == ParameterRole::head;
    const auto elements = static_cast<double>(volume_of(parameter));
    const auto bytes = static_cast<double>(state_bytes(config.optimizer, parameter, master));
    const bool is_new =
        parts.empty() || parts.back().example.layer != parameter.layer || parts.back().of_vocabulary != of_vocabulary;
    if (is_new) parts.push_back({parameter, of_vocabulary, {}});
    add(parts.back().totals, {elements, elements * bytes}, 1);
  }
  for (const Part& part : parts) add(all, part.totals, 1);
}

namespace {

// The fractions of a pipeline rank's parameters of which one of its ranks has the weights without ZeRO, and the states
// with it.
struct ShardFractions {
  explicit ShardFractions(const Mesh& mesh)
      : held(1.0 / (mesh.axis_size(kColumn) * mesh.axis_size(kRow) * mesh.axis_size(kDepth))),
        owned(1.0 * mesh.axis_size(kReplica) * mesh.axis_size(kPipeline) / mesh.size()) {}
  double held, owned;
};

// Bytes of weights, gradients and optimizer state of a rank, without ZeRO's buffers: the mean over the ranks of a
// pipeline rank that has these parameters.
double state_bytes_of_row(const Config& config, const Mesh& mesh, const ParameterTotals& of_row) {
  const int master = master_bytes(config), element = dtype_bytes(config.training.dtype);
  const auto [held, owned] = ShardFractions(mesh);
  const KeptElements kept = kept_gradients(config);
  const int64_t zero = config.parallelism.zero_stage;
  const double masters = element == master ? 0 : master * (zero == 0 ? held : owned);
  const double weights = element * (zero == 3 ? owned : held) + masters;
  const double gradients = kept == KeptElements::none ? 0 : master * (kept == KeptElements::all ? held : owned);
  const double state = config.optimizer.offload ? 0 : zero == 0 ? held : owned;
  return of_row.elements * (weights + gradients) + of_row.state_bytes * state;
}

// Bytes of ZeRO's buffers for a unit of this size: its gathered weights if a pass reads them, and its gradients if a
// pass writes them.
double unit_bytes(const Config& config, const Mesh& mesh, double elements, bool with_weights, bool with_gradients) {
  const auto [held, owned] = ShardFractions(mesh);
  const int64_t zero = config.parallelism.zero_stage;
  if (zero < 2 || owned >= held) return 0;
  const int weights = zero == 3 && with_weights ? dtype_bytes(config.training.dtype) : 0;
  return held * elements * (weights + (with_gradients ? master_bytes(config) : 0));
}

// The elements of the layer whose unit the pass needs; 0 if it is not one layer's.
double layer_elements(const ModelParameters& parameters, const Pipeline& pipeline, const Action& pass) {
  const Range& layers = pipeline.stages[static_cast<size_t>(pass.stage)].layers;
  if (!pipeline.has_gradients_by_unit() || layers.size() != 1) return 0;
  const auto found = std::ranges::find_if(parameters.parts, [&](const ModelParameters::Part& part) {
    return !part.of_vocabulary && part.example.layer == layers.begin;
  });
  return found == parameters.parts.end() ? 0 : found->totals.elements;
}

// Bytes of ZeRO's buffers while passes write the gradients of the largest unit, or with several pipeline ranks of one
// that each of them has.
double mean_unit_bytes(const Config& config, const Mesh& mesh, const ModelParameters& parameters) {
  const int64_t pipeline = mesh.axis_size(kPipeline), layers = config.model.num_hidden_layers;
  if (pipeline == 1) return unit_bytes(config, mesh, parameters.all.largest, true, true);
  const auto& p = config.parallelism;
  const bool each_has_a_layer =
      layers >= pipeline && p.pipeline_parallel_layers.empty() && p.vocabulary_parallel != "redistribution";
  if (!each_has_a_layer) return 0;
  double least = parameters.all.largest;
  for (const ModelParameters::Part& part : parameters.parts) {
    const bool is_layer = part.example.layer >= 0 && part.example.layer < layers;
    if (is_layer) least = std::min(least, part.totals.elements);
  }
  return unit_bytes(config, mesh, least, true, true);
}

}  // namespace

int64_t state_bytes_bound(const Config& config, const RunFacts& facts, const ModelParameters& parameters) {
  const Mesh mesh = make_mesh(config, facts.ranks);
  const double part = 1.0 / mesh.axis_size(kPipeline);
  const ParameterTotals of_row = {part * parameters.all.elements, part * parameters.all.state_bytes};
  return static_cast<int64_t>(state_bytes_of_row(config, mesh, of_row) + mean_unit_bytes(config, mesh, parameters));
}

Config with_few_microbatches(Config config, const RunFacts& facts) {
  const std::string& schedule = config.parallelism.pipeline_parallel_schedule;
  if (schedule.ends_with(".csv")) return config;
  const Sharding sharding = make_sharding(config, facts);
  const int pipeline = sharding.mesh.axis_size(kPipeline);
  if (pipeline > 1 && pipeline_schedule(schedule).uses_durations) return config;
  int64_t &local_batch = config.training.local_batch_size, &global_batch = config.training.global_batch_size;
  const auto enough = static_cast<size_t>(4 * pipeline);
  const std::vector<Range>& all = sharding.data_shards.back().microbatches;
  if (all.size() <= enough || all[enough - 1].size() == 0) return config;
  local_batch = all[enough - 1].size();
  global_batch = std::ssize(sharding.data_shards) * static_cast<int64_t>(enough) * local_batch;
  return config;
}

LayoutBounds::LayoutBounds(const Config& config, const RunFacts& facts, const ModelParameters& parameters)
    : config_(config),
      pipeline_(make_pipeline(make_sharding(with_few_microbatches(config, facts), facts))),
      parameters_(&parameters),
      rows_(static_cast<size_t>(pipeline_.mesh.axis_size(kPipeline))),
      elements_of_layers_(rows_.size()),
      layers_(rows_.size()) {
  const Pipeline& pipeline = pipeline_;
  for (const Stage& stage : pipeline.stages) layers_[static_cast<size_t>(stage.owner)] += stage.layers.size();
  for (const ModelParameters::Part& part : parameters.parts) {
    if (!pipeline.vocabulary.empty() && part.of_vocabulary) {
      for (ParameterTotals& row : rows_) add(row, part.totals, 1.0 / static_cast<double>(rows_.size()));
    } else {
      const Stage& stage = pipeline.stages[static_cast<size_t>(pipeline.stage_of(part.example))];
      add(rows_[static_cast<size_t>(stage.owner)], part.totals, 1);
      if (part.of_vocabulary) continue;
      elements_of_layers_[static_cast<size_t>(stage.owner)] += part.totals.elements;
    }
  }
}

double LayoutBounds::passes_seconds() {
  if (passes_seconds_) return *passes_seconds_;
  const Pipeline full = make_pipeline(make_sharding(config_, pipeline_.facts));
  const Timeline timeline = simulate(full.passes, pass_seconds(full, full.stages));
  double last = 0;
  for (const Span& span : timeline.spans) {
    if (span.stream == Stream::compute) last = std::max(last, span.end);
  }
  if (full.post_validates()) last = std::ranges::max(timeline.busy);
  return passes_seconds_.emplace(last * (1 - kRoundingOfSums));
}

// Lower bounds of the seconds in which a pipeline rank sums gradients and gathers sharded weights in a step.
struct LayoutBounds::DataMessages {
  double reductions = 0, gathers = 0;
};

LayoutBounds::DataMessages LayoutBounds::data_messages(const Config& config) const {
  const Mesh mesh = make_mesh(config, pipeline_.facts.ranks);
  Axes axes;  // over which the gradients of most weights are summed
  for (const std::string& axis : {kData, kUlysses, kRing}) {
    if (mesh.axis_size(axis) > 1) axes.push_back(axis);
  }
  // Muon divides no matrix into chunks, so that a rank may have much more than another. Projections of Linformer are
  // sharded over the ring.
  const bool has_other_shards = mesh.axis_size(kDepth) > 1 || pipeline_.architecture.linformer_length > 0;
  if (axes.empty() || has_other_shards || config.optimizer.name == "muon") return {};
  const ParallelismConfig& p = config.parallelism;
  const Reshard reshard = reshard_named(p.zero_reshard);
  const int64_t microbatches = num_microbatches(config.training.global_batch_size, config.training.local_batch_size,
                                                mesh.group_size(batch_axes(mesh)));
  const int64_t sums = reduces_each_microbatch(p.zero_stage, reshard) ? microbatches : 1;
  const int64_t uses = p.zero_stage == 3 && reshard == Reshard::microbatch ? 2 * microbatches : 1;
  const CollectiveKind sum = p.zero_stage == 0 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter;
  const double ranks = mesh.group_size(axes), held = ShardFractions(mesh).held;
  const double bucket = std::min(p.bucket_mib, 1e9) * 0x1p20 / master_bytes(config);
  DataMessages slowest;
  for (size_t row = 0; row < rows_.size(); ++row) {
    const int64_t layers = layers_[row];
    // Each layer that is a unit has a bucket. Otherwise a bucket closes when it reaches bucket_mib, so it is smaller
    // than bucket_mib and its largest part together.
    const auto buckets = static_cast<int64_t>(held * rows_[row].elements / (bucket + held * rows_[row].largest_part));
    const int64_t parts = std::max<int64_t>(1, has_gradients_by_unit(config) ? layers : buckets);
    const auto seconds = [&](CollectiveKind kind, int64_t times, int element_bytes) {
      const double elements = held * (times == 1 ? rows_[row].elements : elements_of_layers_[row]);
      // Blocks of the gradient norm are not divided, so that the rank may have fewer elements to send.
      const auto undivided = static_cast<double>(kNormBlockElements * kMaxTensorsPerLayer * (layers + 2));
      const double sent = std::max(0.0, elements * (ranks - 1) / ranks - undivided) * static_cast<double>(times);
      const auto bytes = static_cast<int64_t>((kind == CollectiveKind::all_reduce ? 2 : 1) * sent * element_bytes);
      return collective_seconds(mesh, *pipeline_.facts.hardware, kind, axes, times * parts, {bytes, bytes},
                                Waiting::during_other_work);
    };
    slowest.reductions = std::max(slowest.reductions, seconds(sum, sums, master_bytes(config)));
    if (p.zero_stage == 0) continue;
    const int element = dtype_bytes(config.training.dtype);
    slowest.gathers = std::max(slowest.gathers, seconds(CollectiveKind::all_gather, uses, element));
  }
  slowest.reductions *= 1 - kRoundingOfSums, slowest.gathers *= 1 - kRoundingOfSums;
  return slowest;
}

double LayoutBounds::step_seconds(const Config& config) {
  if (pipeline_.post_validates()) return passes_seconds();
  const auto [reductions, gathers] = data_messages(config);
  // With ZeRO 1 and 2, weights are gathered after the update. With ZeRO 3, one stream sums and gathers during the
  // passes.
  if (config.parallelism.zero_stage < 3) return std::max(passes_seconds(), reductions) + gathers;
  return std::max(passes_seconds(), reductions + gathers);
}

LayoutBounds::PassesMemory& LayoutBounds::passes_memory(bool gradients_by_unit) {
  std::shared_ptr<PassesMemory>& known = gradients_by_unit ? memory_by_unit_ : memory_;
  if (known) return *known;
  if (gradients_by_unit == has_gradients_by_unit(pipeline_.config)) {
    known = std::make_shared<PassesMemory>(pipeline_);
  } else {
    Config other = pipeline_.config;
    set_zero(other.parallelism, gradients_by_unit ? 2 : 0);
    known = std::make_shared<PassesMemory>(make_pipeline(make_sharding(other, pipeline_.facts)));
  }
  return *known;
}

int64_t LayoutBounds::memory_bytes(const Config& config, int64_t enough) {
  const Mesh mesh = make_mesh(config, pipeline_.facts.ranks);
  PassesMemory& passes = passes_memory(has_gradients_by_unit(config));
  int64_t most = 0;
  for (size_t row = 0; row < rows_.size() && most <= enough; ++row) {
    const auto states = static_cast<int64_t>(state_bytes_of_row(config, mesh, rows_[row]));
    const auto unit = static_cast<int64_t>(unit_bytes(config, mesh, rows_[row].largest, true, true));
    const RowBytes& bytes = passes.row_bytes(static_cast<int>(row));
    const ActionKind kind = bytes.at.kind;
    const bool reads = kind == ActionKind::F || kind == ActionKind::B || kind == ActionKind::I;
    const bool writes = kind == ActionKind::B || kind == ActionKind::I || kind == ActionKind::W;
    const double elements = reads || writes ? layer_elements(*parameters_, passes.pipeline, bytes.at) : 0;
    const auto with_unit = static_cast<int64_t>(unit_bytes(config, mesh, elements, reads, writes));
    most = std::max(most, states + std::max(unit, bytes.peak.total() + with_unit));
  }
  return most;
}

}  // namespace orthant
