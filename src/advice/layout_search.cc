#include "advice/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "advice/answer.h"
#include "advice/candidates.h"
#include "advice/layout_bounds.h"
#include "advice/memory_limit.h"
#include "advice/tensor_choices.h"
#include "advice/zero_choices.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/table.h"
#include "config/tensor_check.h"
#include "parallel/sequence/placement_plan.h"
#include "parallel/tensor/volume_plan.h"
#include "plan/pass_time.h"

namespace orthant {
namespace {

constexpr size_t kRefined = 12;  // layouts whose schedule and placement of the vocabulary are varied further
constexpr int64_t kMostSequenceRanks = 64;
constexpr int64_t kMostLocalBatch = 8;

// A mesh and a size of microbatches.
struct Shape {
  TensorPlan tensor;
  int64_t pipeline = 1, ulysses = 1, ring = 1, data = 1, local_batch = 1;
  double bound = 0;  // of the step time

  std::string kind() const {
    std::vector<std::string> axes;
    const auto add = [&](int64_t size, const std::string& name) {
      if (size > 1) axes.push_back(name);
    };
    add(tensor.ranks(), "tensor"), add(ulysses * ring, "sequence"), add(data, "data"), add(pipeline, "pipeline");
    return join(axes, " + ");
  }
};

class LayoutSearch {
 public:
  LayoutSearch(const Config& config, const RunFacts& facts) : base_(config), facts_(facts) {
    base_.run.ranks = facts.ranks;
    if (config.parallelism.layout == "auto") base_.origins["parallelism.layout"] = kChosenByAuto;
    base_.parallelism.layout = ParallelismConfig().layout;
  }

  SearchResult run() {
    std::vector<Shape> shapes = find_shapes();
    std::ranges::stable_sort(shapes, {}, &Shape::bound);
    result_.shapes = std::ssize(shapes);
    for (const Shape& shape : shapes) {
      const bool may_win = shape.bound < limit(shape.kind());
      may_win ? search_passes(shape) : void(++result_.left_out);
    }
    refine();
    if (result_.fitting.empty()) search_smallest(shapes);
    std::ranges::stable_sort(result_.fitting, {}, [](const FoundLayout& found) { return found.time.seconds; });
    return std::move(result_);
  }

 private:
  bool is_set(const std::string& key) const {
    const auto origin = base_.origins.find(key);
    return origin != base_.origins.end() && !origin->second.starts_with("default");
  }
  /// The values to try of a key: its own if the user has set it.
  std::vector<int64_t> choices(const std::string& key, std::vector<int64_t> all, int64_t own) const {
    return is_set(key) && own != -1 ? std::vector{own} : all;
  }

  /// Only shorter steps than this are of interest: than the tenth best, or any if no layout of the kind fits yet.
  double limit(const std::string& kind) const {
    if (!best_of_kind_.contains(kind) || best_.size() < kShown) return INFINITY;
    return *std::next(best_.begin(), kShown - 1);
  }

  std::vector<TensorPlan> tensor_plans() const {
    const auto& p = base_.parallelism;
    const bool has_mesh = p.tensor_parallel_kind == "2d" || p.tensor_parallel_kind == "2.5d";
    if (has_mesh) {
      const auto [rows, columns, depth] = p.tensor_parallel_mesh;
      return {{.rows = static_cast<int>(rows), .columns = static_cast<int>(columns), .depth = static_cast<int>(depth)}};
    }
    std::vector<TensorPlan> plans;
    for (const int64_t ranks : choices("parallelism.tensor_parallel_degree", divisors_of(facts_.ranks),
                                       p.tensor_parallel_degree)) {
      const bool given = is_set("parallelism.tensor_parallel_degree");
      if (!given && ranks > facts_.hardware->device.per_host) break;  // its messages are in every layer
      for (const TensorPlan& plan : tensor_arrangements(static_cast<int>(ranks))) {
        const bool is_1d = plan.stream != StreamSharding::width;
        // With one row, columns are those of kind 1d with more messages, and the depth is data parallelism.
        if (!given && plan.stream == StreamSharding::width && plan.rows == 1) continue;
        if (ranks == 1 && plan.stream != StreamSharding::tokens) continue;
        // A degree that the user sets is one of kind 1d, unless the kind is "auto".
        const bool only_1d = p.tensor_parallel_kind == "1d" && (given || is_set("parallelism.tensor_parallel_kind"));
        if (only_1d && !is_1d) continue;
        const bool shards_tokens = plan.stream == StreamSharding::tokens;
        if (is_set("parallelism.tensor_parallel_sequence") && (!is_1d || shards_tokens != p.tensor_parallel_sequence)) {
          continue;
        }
        plans.push_back(plan);
      }
    }
    return plans;
  }

  /// All legal shapes with their bounds.
  std::vector<Shape> find_shapes() {
    std::vector<Shape> shapes;
    const auto& p = base_.parallelism;
    const auto all = divisors_of(facts_.ranks);
    const auto pipelines = choices("parallelism.pipeline_parallel_degree", all, p.pipeline_parallel_degree);
    const auto ulysses = choices("parallelism.context_parallel_ulysses", all, p.context_parallel_ulysses);
    const auto rings = choices("parallelism.context_parallel_ring", all, p.context_parallel_ring);
    std::vector<int64_t> batches;
    for (int64_t size = 1; size <= kMostLocalBatch; size *= 2) batches.push_back(size);
    batches = choices("training.local_batch_size", batches, base_.training.local_batch_size);
    for (const TensorPlan& tensor : tensor_plans()) {
      for (const int64_t pipeline : pipelines) {
        for (const int64_t heads : ulysses) {
          for (const int64_t ring : rings) {
            const int64_t used = tensor.ranks() * pipeline * heads * ring;
            if (facts_.ranks % used != 0) continue;
            for (const int64_t local_batch : batches) {
              Shape shape{.tensor = tensor,
                          .pipeline = pipeline,
                          .ulysses = heads,
                          .ring = ring,
                          .data = facts_.ranks / used,
                          .local_batch = local_batch};
              if (is_legal(shape)) add_bound(shapes, shape);
            }
          }
        }
      }
    }
    return shapes;
  }

  /// The laws of meshes and batches, by arithmetic.
  bool is_legal(const Shape& shape) const {
    const auto& p = base_.parallelism;
    const auto& batch = base_.training;
    if (is_set("parallelism.data_parallel_degree") && p.data_parallel_degree != -1 &&
        p.data_parallel_degree != shape.data) {
      return false;
    }
    const int64_t shards = shape.data * shape.tensor.rows * shape.tensor.depth;
    if (shards > batch.global_batch_size) return false;
    const int64_t sequences = (batch.global_batch_size + shards - 1) / shards;
    if (shape.local_batch > sequences && !is_set("training.local_batch_size")) return false;
    if (shape.pipeline > base_.model.num_hidden_layers) return false;
    if (shape.ulysses * shape.ring > kMostSequenceRanks) return false;
    if (shape.ulysses > base_.model.num_attention_heads) return false;
    const SequencePlacement placement =
        shape.ring == 1 ? SequencePlacement::contiguous : sequence_placement_of(p.context_parallel_placement);
    const auto heads = static_cast<int>(shape.ulysses), ring = static_cast<int>(shape.ring);
    if (pieces(placement, heads, ring) > batch.seq_len) return false;
    if (shape.tensor.ranks() == 1) return true;
    return !find_tensor_refusal(base_, shape.tensor, {.ulysses = heads, .ring = ring, .placement = placement},
                                shape.data);
  }

  void add_bound(std::vector<Shape>& shapes, Shape shape) {
    try {
      shape.bound = step_seconds_bound(configure(shape), facts_);
      shapes.push_back(shape);
    } catch (const ConfigError&) {
      ++result_.refused;
    }
  }

  Config configure(const Shape& shape) const {
    Config config = shape.tensor.ranks() > 1 ? with_tensor_plan(base_, shape.tensor) : base_;
    auto& p = config.parallelism;
    if (shape.tensor.ranks() == 1) p.tensor_parallel_kind = "1d", p.tensor_parallel_degree = 1;
    p.context_parallel_ulysses = shape.ulysses;
    p.context_parallel_ring = shape.ring;
    p.data_parallel_degree = shape.data;
    p.pipeline_parallel_degree = shape.pipeline;
    config.training.local_batch_size = shape.local_batch;
    return config;
  }

  /// Tries three schedules.
  void search_passes(const Shape& shape) {
    const Config config = configure(shape);
    if (shape.pipeline == 1 || is_set("parallelism.pipeline_parallel_schedule")) return search_schedule(shape, config);
    for (const auto& [schedule, stages] : std::vector<std::pair<const char*, int>>{
             {"1f1b", 1}, {"interleaved_1f1b", 2}, {"zb_v", 2}}) {
      if (stages * shape.pipeline > base_.model.num_hidden_layers) continue;
      Config other = config;
      other.parallelism.pipeline_parallel_schedule = schedule;
      search_schedule(shape, other);
    }
  }

  /// Tries every stage of ZeRO, each with more and more recomputation until the layout fits. More recomputation never
  /// makes a step shorter. Layouts whose passes alone take too long, or whose bound of memory does not fit, are left
  /// out.
  void search_schedule(const Shape& shape, const Config& config) {
    std::vector<Config> states = with_states(shape, config);
    for (const ActivationCheckpointConfig& setting : recomputations()) {
      const auto bounds = bounds_of(config, setting);
      if (!bounds || bounds->step_seconds() >= limit(shape.kind())) return;
      std::erase_if(states, [&](Config& state) {
        if (!may_fit(bounds->memory_bytes(state))) return false;
        state.activation_checkpoint = setting;
        return add_below(shape.kind(), state) != Outcome::too_large;
      });
    }
  }

  std::vector<Config> with_states(const Shape& shape, const Config& config) const {
    if (is_set("parallelism.zero_stage") || is_set("parallelism.zero_reshard")) return {config};
    std::vector<Config> all;
    const auto add_zero = [&](int64_t stage, Reshard reshard, int64_t replicas) {
      all.push_back(config);
      set_zero(all.back().parallelism, stage, reshard);
      if (replicas > 1) all.back().parallelism.data_parallel_replicate_degree = replicas;
    };
    add_zero(0, Reshard::step, 1);
    if (facts_.ranks == shape.tensor.ranks() * shape.pipeline) return all;
    std::vector<int64_t> copies = {1};
    const int64_t on_host = facts_.hardware->device.per_host / (shape.tensor.ranks() * shape.ulysses * shape.ring);
    const bool given = is_set("parallelism.data_parallel_replicate_degree") ||
                       is_set("parallelism.data_parallel_shard_degree");
    if (!given && on_host > 1 && shape.data > on_host && shape.data % on_host == 0) {
      copies.push_back(shape.data / on_host);
    }
    for (const int64_t replicas : copies) {
      for (const int64_t stage : {1, 2}) add_zero(stage, Reshard::step, replicas);
      for (const Reshard reshard : {Reshard::step, Reshard::never, Reshard::microbatch}) {
        add_zero(3, reshard, replicas);
      }
    }
    return all;
  }

  std::vector<ActivationCheckpointConfig> recomputations() const {
    if (is_set("activation_checkpoint.mode")) return {base_.activation_checkpoint};
    return {{.mode = "none"},
            {.mode = "selective", .operations = {"norms", "swiglu"}},
            {.mode = "selective", .operations = {"norms", "attention", "swiglu"}},
            {.mode = "full"}};
  }

  std::optional<LayoutBounds> bounds_of(Config config, const ActivationCheckpointConfig& recomputation) {
    config.activation_checkpoint = recomputation;
    try {
      return LayoutBounds(make_pipeline(make_sharding(config, facts_)));
    } catch (const ConfigError&) {
      ++result_.refused;
      return std::nullopt;
    }
  }

  bool may_fit(int64_t bytes) const {
    const double limit = base_.run.memory_gib_per_rank * 0x1p30, tensors = static_cast<double>(bytes);
    return tensors <= facts_.hardware->device.memory_bytes && (limit == 0 || tensors <= limit);
  }

  /// Plans the best pipelines again with the other schedules and placements of the vocabulary.
  void refine() {
    std::ranges::stable_sort(result_.fitting, {}, [](const FoundLayout& found) { return found.time.seconds; });
    std::vector<std::pair<std::string, Config>> best;
    for (const FoundLayout& found : result_.fitting) {
      if (found.config.parallelism.pipeline_parallel_degree > 1 && best.size() < kRefined) {
        best.emplace_back(found.kind, found.config);
      }
    }
    const auto vary = [&](const std::string& key, const std::vector<std::pair<std::string, int>>& values,
                          const auto& change) {
      if (is_set(key)) return;
      for (const auto& [kind, config] : best) {
        for (const auto& [value, stages] : values) {
          if (stages * config.parallelism.pipeline_parallel_degree > base_.model.num_hidden_layers) continue;
          Config other = config;
          change(other.parallelism, value, stages);
          add(kind, other);
        }
      }
    };
    vary("parallelism.vocabulary_parallel", {{"redistribution", 1}, {"algorithm_1", 1}, {"algorithm_2", 1}},
         [](ParallelismConfig& p, const std::string& value, int) { p.vocabulary_parallel = value; });
    vary("parallelism.pipeline_parallel_schedule", {{"interleaved_1f1b", 4}, {"zb_h1", 1}, {"v_half", 2}, {"v_min", 2}},
         [](ParallelismConfig& p, const std::string& value, int stages) {
           p.pipeline_parallel_schedule = value;
           p.pipeline_parallel_stages_per_rank = stages == 4 ? stages : 0;
         });
  }

  /// Finds the layout that needs least memory, with the most recomputation, in ascending order of the bound.
  void search_smallest(const std::vector<Shape>& shapes) {
    std::vector<std::pair<int64_t, std::pair<Shape, Config>>> all;
    if (shapes.empty()) return;
    const int64_t least_batch = std::ranges::min_element(shapes, {}, &Shape::local_batch)->local_batch;
    for (const Shape& shape : shapes) {
      if (shape.local_batch != least_batch) continue;
      const auto bounds = bounds_of(configure(shape), recomputations().back());
      if (!bounds) continue;
      for (Config& config : with_states(shape, configure(shape))) {
        config.activation_checkpoint = recomputations().back();
        const int64_t bound = bounds->memory_bytes(config);
        all.emplace_back(bound, std::pair(shape, std::move(config)));
      }
    }
    std::ranges::stable_sort(all, {}, [](const auto& entry) { return entry.first; });
    for (const auto& [bound, layout] : all) {
      if (result_.smallest && bound >= result_.smallest->memory_bytes) return;
      add(layout.first.kind(), layout.second);
    }
  }

  enum class Outcome { fits, too_large, too_slow, refused };
  /// Plans the layout if its step is short enough to be of interest.
  Outcome add_below(const std::string& kind, const Config& config) {
    try {
      check_config(config, {.only_plans = true, .nccl = true, .no_ucx = {}});
      if (plan_step_time(config, facts_).seconds >= limit(kind)) return Outcome::too_slow;
    } catch (const ConfigError&) {
      ++result_.refused;
      return Outcome::refused;
    }
    return add(kind, config);
  }
  Outcome add(const std::string& kind, const Config& config) {
    try {
      check_config(config, {.only_plans = true, .nccl = true, .no_ucx = {}});
      const Plan plan = make_plan(config, facts_);
      ++result_.planned;
      FoundLayout found = layout_of(plan);
      mark_chosen(found.config);
      found.kind = kind;
      if (!result_.smallest || found.memory_bytes < result_.smallest->memory_bytes) result_.smallest = found;
      if (!fits_a_device(plan, found.memory_bytes)) return Outcome::too_large;
      best_.insert(found.time.seconds);
      const auto [best, is_new] = best_of_kind_.try_emplace(kind, found.time.seconds);
      best->second = std::min(best->second, found.time.seconds);
      result_.fitting.push_back(std::move(found));
      return Outcome::fits;
    } catch (const ConfigError&) {
      ++result_.refused;
      return Outcome::refused;
    }
  }

  /// Gives the keys that the search has changed their origin.
  void mark_chosen(Config& config) const {
    Config base = base_;
    for (const std::string& name : searched_keys()) {
      const Key& key = *find_key(name);
      if (value_text(key, config) != value_text(key, base)) config.origins[name] = kChosenByAuto;
    }
  }

  static FoundLayout layout_of(const Plan& plan) {
    std::string name = plan.mesh_and_kind();
    const bool is_1d = plan.tensor.columns > 1 && plan.tensor.stream != StreamSharding::width;
    if (is_1d && !plan.config.parallelism.tensor_parallel_sequence) name += "; no sequence parallelism";
    if (plan.schedule.rows.size() > 1) name += "; " + schedule_text(plan.config);
    const auto& recompute = plan.config.activation_checkpoint;
    if (recompute.mode == "full") name += "; recomputes blocks";
    if (recompute.mode == "selective") name += "; recomputes " + join(recompute.operations, " + ");
    if (const int64_t local = plan.config.training.local_batch_size; local > 1) {
      name += fmt::format("; microbatches of {}", local);
    }
    return {.config = plan.config,
            .name = std::move(name),
            .time = *plan.step_time,
            .mfu = model_flops_utilization(plan, plan.step_time->seconds, true),
            .memory_bytes = plan.largest_memory_bytes()};
  }

  Config base_;
  const RunFacts& facts_;
  SearchResult result_;
  std::multiset<double> best_;                   // step times of the layouts that fit
  std::map<std::string, double> best_of_kind_;   // the shortest of each kind of layouts
};

}  // namespace

SearchResult search_layouts(const Config& config, const RunFacts& facts) { return LayoutSearch(config, facts).run(); }

}  // namespace orthant
