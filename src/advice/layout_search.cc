#include "advice/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "advice/answer.h"
#include "advice/layout_bounds.h"
#include "advice/layout_variants.h"
#include "advice/memory_limit.h"
#include "advice/mesh_choices.h"
#include "advice/zero_choices.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/table.h"

namespace orthant {
namespace {

constexpr size_t kRefined = 12;  // layouts that are varied further

class LayoutSearch {
 public:
  LayoutSearch(const Config& config, const RunFacts& facts)
      : base_(config), facts_(facts), variants_(base_, facts), parameters_(config, facts) {
    base_.run.ranks = facts.ranks;
    if (config.parallelism.layout == "auto") base_.origins["parallelism.layout"] = kChosenByAuto;
    base_.parallelism.layout = ParallelismConfig().layout;
  }

  SearchResult run(const SearchProgress& progress) {
    search_space(progress);
    if (result_.planned == 0) {  // nothing else is legal
      variants_.allow_idle_ranks();
      search_space(progress);
    }
    sort_fitting();
    return std::move(result_);
  }

 private:
  using BoundedMesh = std::pair<double, MeshChoice>;  // a lower bound of the step, and the mesh

  void search_space(const SearchProgress& progress) {
    std::vector<BoundedMesh> meshes;
    for (const bool beyond_hosts : {false, true}) {
      meshes = sorted_meshes({.idle_ranks = variants_.allows_idle_ranks(), .beyond_hosts = beyond_hosts});
      search_meshes(meshes, progress);
      refine();
      if (!result_.fitting.empty()) return;
    }
    search_smallest(meshes, progress);
  }

  /// By step time, then by memory.
  void sort_fitting() {
    std::ranges::stable_sort(result_.fitting, {}, [](const FoundLayout& found) {
      return std::pair(found.time.seconds, found.memory_bytes);
    });
  }

  std::vector<BoundedMesh> sorted_meshes(const MeshSpace& space) {
    std::vector<BoundedMesh> meshes;
    for (const MeshChoice& mesh : mesh_choices(base_, facts_, space)) {
      try {
        meshes.emplace_back(step_seconds_bound(with_mesh(base_, mesh), facts_), mesh);
      } catch (const ConfigError&) {
        ++result_.refused;
      }
    }
    std::ranges::stable_sort(meshes, {}, &BoundedMesh::first);
    return meshes;
  }

  void search_meshes(const std::vector<BoundedMesh>& meshes, const SearchProgress& progress) {
    result_.meshes = std::ssize(meshes);
    for (int64_t done = 0; const auto& [bound, mesh] : meshes) {
      const bool may_win = bound < limit(mesh.kind());
      may_win ? search_passes(mesh) : void(++result_.left_out);
      if (progress) progress(++done, result_.meshes);
    }
  }

  /// Only shorter steps than this are of interest: than the tenth best, or any if no layout of the kind fits yet.
  double limit(const std::string& kind) const {
    if (!best_of_kind_.contains(kind) || best_.size() < kShown) return INFINITY;
    return *std::next(best_.begin(), kShown - 1);
  }

  /// Tries three schedules.
  void search_passes(const MeshChoice& mesh) {
    const Config config = with_mesh(base_, mesh);
    const bool is_given = base_.is_set("parallelism.pipeline_parallel_schedule");
    if (mesh.pipeline == 1 || is_given) return search_schedule(mesh, config);
    for (const auto& [schedule, stages] : std::vector<std::pair<const char*, int>>{
             {"1f1b", 1}, {"interleaved_1f1b", 2}, {"zb_v", 2}}) {
      if (!variants_.has_layers_for(stages, mesh.pipeline)) continue;
      Config other = config;
      other.parallelism.pipeline_parallel_schedule = schedule;
      search_schedule(mesh, other);
    }
  }

  /// Tries every stage of ZeRO, each with more and more recomputation until the layout fits. More recomputation never
  /// makes a step shorter. Layouts whose passes alone take too long, or whose bound of memory does not fit, are left
  /// out.
  void search_schedule(const MeshChoice& mesh, const Config& config) {
    std::vector<Config> states = states_that_may_fit(mesh, config);
    for (const ActivationCheckpointConfig& setting : variants_.recomputations()) {
      if (states.empty()) return;
      auto bounds = bounds_of(with_passes_of(states, config), setting);
      if (!bounds) return void(++result_.refused);
      std::optional<bool> too_slow;  // looked up once, if a layout may fit
      std::erase_if(states, [&](Config& state) {
        if (!may_fit(bounds->memory_bytes(state, memory_limit()))) return false;
        if (!too_slow) too_slow = is_too_slow(mesh, *bounds);
        if (*too_slow) return false;
        state.activation_checkpoint = setting;
        if (!may_fit(bytes_with_few_microbatches(state))) return false;
        return add(mesh.kind(), state, limit(mesh.kind())) != Outcome::too_large;
      });
      if (too_slow.value_or(false)) return;
    }
  }

  std::vector<Config> states_that_may_fit(const MeshChoice& mesh, const Config& config) const {
    std::vector<Config> states = variants_.states(mesh, config);
    std::erase_if(states, [&](const Config& state) { return !may_fit(least_state_bytes(state)); });
    return states;
  }

  /// The config whose passes all these stages of ZeRO have.
  static Config with_passes_of(const std::vector<Config>& states, Config config) {
    if (std::ranges::all_of(states, has_gradients_by_unit)) set_zero(config.parallelism, 2);
    return config;
  }

  std::optional<LayoutBounds> bounds_of(Config config, const ActivationCheckpointConfig& recomputation) {
    config.activation_checkpoint = recomputation;
    try {
      return LayoutBounds(config, facts_, parameters_);
    } catch (const ConfigError&) {
      return std::nullopt;
    }
  }

  bool is_too_slow(const MeshChoice& mesh, const LayoutBounds& bounds) const {
    const double limit_s = limit(mesh.kind());
    try {
      return limit_s < INFINITY && bounds.step_seconds() >= limit_s;
    } catch (const ConfigError&) {
      return false;  // whoever plans it finds the law that it breaks
    }
  }

  /// A bound of the memory that costs no look at the passes.
  int64_t least_state_bytes(const Config& config) const {
    try {
      return state_bytes_bound(config, facts_, parameters_);
    } catch (const ConfigError&) {
      return 0;  // whoever plans it finds the law that it breaks
    }
  }

  /// The most bytes of tensors that fit a device and run.memory_gib_per_rank.
  int64_t memory_limit() const {
    const double given = base_.run.memory_gib_per_rank * 0x1p30, device = facts_.hardware->device.memory_bytes;
    return static_cast<int64_t>(given == 0 ? device : std::min(given, device));
  }
  bool may_fit(int64_t bytes) const { return bytes <= memory_limit(); }

  /// Plans the best layouts again: pipelines with the other schedules and placements of the vocabulary, and then all
  /// with other copies of sharded states, and with other recomputations.
  void refine() {
    const auto is_pipeline = [](const Config& config) { return config.parallelism.pipeline_parallel_degree > 1; };
    for (const auto& [kind, config] : best_layouts(is_pipeline, false)) {
      for (const Config& other : variants_.pipelines(config)) add(kind, other);
    }
    const auto any = [](const Config&) { return true; };
    for (const auto& [kind, config] : best_layouts(any, true)) {
      for (const Config& other : variants_.copies(config)) add(kind, other, limit(kind));
    }
    for (const auto& [kind, config] : best_layouts(any, true)) {
      for (const Config& other : variants_.partial_recomputations(config)) add(kind, other, limit(kind));
    }
  }

  /// The kinds and configs of the best layouts that are wanted, and with `of_each_kind` the best one of each kind.
  std::vector<std::pair<std::string, Config>> best_layouts(const std::function<bool(const Config&)>& wanted,
                                                           bool of_each_kind) {
    sort_fitting();
    std::vector<std::pair<std::string, Config>> best;
    std::set<std::string> kinds;
    size_t count = 0;
    for (const FoundLayout& found : result_.fitting) {
      if (!wanted(found.config)) continue;
      const bool is_new = kinds.insert(found.kind).second;
      if (count++ < kRefined || (is_new && of_each_kind)) best.emplace_back(found.kind, found.config);
    }
    return best;
  }

  // A layout with the most recomputation.
  struct Candidate {
    std::string kind;
    size_t pipeline;  // index of the passes that it shares with others
    Config config;
    enum { state_bytes, passes, few_microbatches } bound;  // what the bound of its memory counts; each counts more
  };

  /// Finds the layout that needs least memory. Layouts are in ascending order of a bound of it, and the first one gets
  /// the next better bound. Most are left out by a bound that costs little.
  void search_smallest(const std::vector<BoundedMesh>& meshes, const SearchProgress& progress) {
    std::vector<Config> pipelines;
    std::multimap<int64_t, Candidate> open;
    int64_t least_batch = std::numeric_limits<int64_t>::max();
    for (const auto& [bound, mesh] : meshes) least_batch = std::min(least_batch, mesh.local_batch);
    for (const auto& [bound, mesh] : meshes) {
      if (mesh.local_batch != least_batch) continue;
      for (Config& pipeline : variants_.lean_pipelines(mesh)) {
        pipeline.activation_checkpoint = variants_.recomputations().back();
        for (const Config& config : variants_.states(mesh, pipeline)) {
          open.emplace(least_state_bytes(config),
                       Candidate{mesh.kind(), pipelines.size(), config, Candidate::state_bytes});
        }
        pipelines.push_back(pipeline);
      }
    }
    std::map<size_t, std::optional<LayoutBounds>> bounds;
    for (int64_t done = 0; !open.empty(); ++done) {
      auto node = open.extract(open.begin());
      if (result_.smallest && node.key() >= result_.smallest->memory_bytes) {
        if (progress) progress(done, done);
        return;
      }
      Candidate& layout = node.mapped();
      if (layout.bound == Candidate::few_microbatches) {
        add(layout.kind, layout.config);
      } else if (layout.bound == Candidate::passes) {
        node.key() = std::max(node.key(), bytes_with_few_microbatches(layout.config));
        layout.bound = Candidate::few_microbatches;
        open.insert(std::move(node));
      } else {
        const auto [found, is_new] = bounds.try_emplace(layout.pipeline);
        if (is_new) found->second = bounds_of(pipelines[layout.pipeline], variants_.recomputations().back());
        if (!found->second) continue;
        node.key() = found->second->memory_bytes(layout.config);
        layout.bound = Candidate::passes;
        open.insert(std::move(node));
      }
      if (progress) progress(done, done + std::ssize(open));
    }
  }

  /// The memory of the layout with few microbatches, if it has many: a plan of them costs much less. Otherwise, and if
  /// it is illegal, 0.
  int64_t bytes_with_few_microbatches(const Config& config) const {
    try {
      const Config few = with_few_microbatches(config, facts_);
      if (4 * few.training.global_batch_size > config.training.global_batch_size) return 0;
      check_config(few, {.only_plans = true, .nccl = true, .no_ucx = {}});
      return make_plan(few, facts_).largest_memory_bytes();
    } catch (const ConfigError&) {
      return 0;  // whoever plans all of them finds the law that it breaks
    }
  }

  enum class Outcome { fits, too_large, too_slow, refused };
  /// Plans the layout, unless it has been planned. If its step takes `limit_s` or more, it is not of interest.
  Outcome add(const std::string& kind, const Config& config, double limit_s = INFINITY) {
    std::string layout;
    for (const std::string& key : searched_keys()) layout += value_text(*find_key(key), config) + "\n";
    if (planned_.contains(layout)) return Outcome::refused;
    try {
      check_config(config, {.only_plans = true, .nccl = true, .no_ucx = {}});
      const std::optional<Plan> plan = make_plan_below(config, facts_, limit_s);
      if (!plan) return Outcome::too_slow;
      ++result_.planned;
      planned_.insert(layout);
      FoundLayout found = layout_of(*plan);
      mark_chosen(found.config);
      found.kind = kind;
      if (!result_.smallest || found.memory_bytes < result_.smallest->memory_bytes) result_.smallest = found;
      if (!fits_a_device(*plan, found.memory_bytes)) return Outcome::too_large;
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
    if (const std::string text = recomputation_text(plan.config); !text.empty()) name += "; " + text;
    return {.config = plan.config,
            .name = std::move(name),
            .time = *plan.step_time,
            .mfu = model_flops_utilization(plan, plan.step_time->seconds, true),
            .mfu_causal = model_flops_utilization(plan, plan.step_time->seconds, false),
            .memory_bytes = plan.largest_memory_bytes()};
  }

  Config base_;
  const RunFacts& facts_;
  LayoutVariants variants_;
  const ModelParameters parameters_;
  SearchResult result_;
  std::set<std::string> planned_;                // the values of searched_keys()
  std::multiset<double> best_;                   // step times of the layouts that fit
  std::map<std::string, double> best_of_kind_;   // the shortest of each kind of layouts
};

}  // namespace

const std::vector<std::string>& searched_keys() {
  static const std::vector<std::string> keys = {"parallelism.layout",
                                                "parallelism.tensor_parallel_kind",
                                                "parallelism.tensor_parallel_degree",
                                                "parallelism.tensor_parallel_mesh",
                                                "parallelism.tensor_parallel_sequence",
                                                "parallelism.pipeline_parallel_degree",
                                                "parallelism.context_parallel_ulysses",
                                                "parallelism.context_parallel_ring",
                                                "parallelism.data_parallel_degree",
                                                "parallelism.zero_stage",
                                                "parallelism.zero_reshard",
                                                "parallelism.data_parallel_replicate_degree",
                                                "parallelism.pipeline_parallel_schedule",
                                                "parallelism.pipeline_parallel_stages_per_rank",
                                                "parallelism.vocabulary_parallel",
                                                "activation_checkpoint.mode",
                                                "activation_checkpoint.operations",
                                                "activation_checkpoint.layers",
                                                "training.local_batch_size"};
  return keys;
}

SearchResult search_layouts(const Config& config, const RunFacts& facts, const SearchProgress& progress) {
  return LayoutSearch(config, facts).run(progress);
}

}  // namespace orthant
