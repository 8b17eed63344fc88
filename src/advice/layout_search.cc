#include "advice/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "advice/answer.h"
#include "advice/layout_bounds.h"
#include "advice/memory_limit.h"
#include "advice/mesh_choices.h"
#include "advice/zero_choices.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/table.h"

namespace orthant {
namespace {

constexpr size_t kRefined = 12;  // layouts whose schedule and placement of the vocabulary are varied further

class LayoutSearch {
 public:
  LayoutSearch(const Config& config, const RunFacts& facts) : base_(config), facts_(facts) {
    base_.run.ranks = facts.ranks;
    if (config.parallelism.layout == "auto") base_.origins["parallelism.layout"] = kChosenByAuto;
    base_.parallelism.layout = ParallelismConfig().layout;
  }

  SearchResult run(const SearchProgress& progress) {
    auto meshes = sorted_meshes();
    search_meshes(meshes, progress);
    if (result_.planned == 0) {  // nothing else is legal
      allows_idle_ranks_ = true;
      meshes = sorted_meshes();
      search_meshes(meshes, progress);
    }
    refine();
    if (result_.fitting.empty()) search_smallest(meshes, progress);
    std::ranges::stable_sort(result_.fitting, {}, [](const FoundLayout& found) { return found.time.seconds; });
    return std::move(result_);
  }

 private:
  using BoundedMesh = std::pair<double, MeshChoice>;  // a lower bound of the step, and the mesh

  std::vector<BoundedMesh> sorted_meshes() {
    std::vector<BoundedMesh> meshes;
    for (const MeshChoice& mesh : mesh_choices(base_, facts_, allows_idle_ranks_)) {
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

  /// Whether the search tries this number of stages on each pipeline rank.
  bool has_layers_for(int stages, int64_t pipeline) const {
    return allows_idle_ranks_ || stages * pipeline <= base_.model.num_hidden_layers;
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
      if (!has_layers_for(stages, mesh.pipeline)) continue;
      Config other = config;
      other.parallelism.pipeline_parallel_schedule = schedule;
      search_schedule(mesh, other);
    }
  }

  /// Tries every stage of ZeRO, each with more and more recomputation until the layout fits. More recomputation never
  /// makes a step shorter. Layouts whose passes alone take too long, or whose bound of memory does not fit, are left
  /// out.
  void search_schedule(const MeshChoice& mesh, const Config& config) {
    std::vector<Config> states = with_states(mesh, config);
    for (const ActivationCheckpointConfig& setting : recomputations()) {
      auto bounds = bounds_of(config, setting);
      if (!bounds || bounds->step_seconds() >= limit(mesh.kind())) return;
      std::erase_if(states, [&](Config& state) {
        if (!may_fit(bounds->memory_bytes(state))) return false;
        state.activation_checkpoint = setting;
        return add(mesh.kind(), state, limit(mesh.kind())) != Outcome::too_large;
      });
    }
  }

  /// The stages of ZeRO, each with its values of zero_reshard and with copies on each host (HSDP).
  std::vector<Config> with_states(const MeshChoice& mesh, const Config& config) const {
    const ParallelismConfig& given = base_.parallelism;
    const bool copies_are_set = base_.is_set("parallelism.data_parallel_replicate_degree") ||
                                base_.is_set("parallelism.data_parallel_shard_degree");
    // A degree that is set to its default asks for no copies, which stage 0 permits.
    const bool copies_are_given =
        given.data_parallel_replicate_degree != ParallelismConfig().data_parallel_replicate_degree ||
        given.data_parallel_shard_degree != ParallelismConfig().data_parallel_shard_degree;
    std::vector<Config> all;
    const auto add_zero = [&](int64_t stage, Reshard reshard, int64_t replicas) {
      if (base_.is_set("parallelism.zero_stage") && stage != given.zero_stage) return;
      if (base_.is_set("parallelism.zero_reshard") && name_of(reshard) != given.zero_reshard) return;
      if (copies_are_given && stage == 0) return;
      set_zero(all.emplace_back(config).parallelism, stage, reshard);
      if (replicas > 1) all.back().parallelism.data_parallel_replicate_degree = replicas;
    };
    add_zero(0, Reshard::step, 1);
    if (facts_.ranks == mesh.tensor.ranks() * mesh.pipeline) return all.empty() ? std::vector{config} : all;
    std::vector<int64_t> copies = {1};
    const int64_t on_host = facts_.hardware->device.per_host / (mesh.tensor.ranks() * mesh.ulysses * mesh.ring);
    if (!copies_are_set && on_host > 1 && mesh.data > on_host && mesh.data % on_host == 0) {
      copies.push_back(mesh.data / on_host);
    }
    for (const int64_t replicas : copies) {
      for (const int64_t stage : {1, 2}) add_zero(stage, Reshard::step, replicas);
      for (const Reshard reshard : {Reshard::step, Reshard::never, Reshard::microbatch}) {
        add_zero(3, reshard, replicas);
      }
    }
    if (copies_are_given) std::erase_if(all, [&](const Config& state) { return !has_mesh(state); });
    return all;
  }

  bool has_mesh(const Config& config) const {
    try {
      make_mesh(config, facts_.ranks);
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }

  std::vector<ActivationCheckpointConfig> recomputations() const {
    if (base_.is_set("activation_checkpoint.mode")) return {base_.activation_checkpoint};
    return {{.mode = "none"},
            {.mode = "selective", .operations = {"norms", "swiglu"}},
            {.mode = "selective", .operations = {"norms", "attention", "swiglu"}},
            {.mode = "full"}};
  }

  std::optional<LayoutBounds> bounds_of(Config config, const ActivationCheckpointConfig& recomputation) {
    config.activation_checkpoint = recomputation;
    try {
      return LayoutBounds(config, facts_);
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
      if (base_.is_set(key)) return;
      for (const auto& [kind, config] : best) {
        for (const auto& [value, stages] : values) {
          if (!has_layers_for(stages, config.parallelism.pipeline_parallel_degree)) continue;
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

  /// The mesh with the schedules and the placements of the vocabulary that need least memory.
  std::vector<Config> lean_pipelines(const MeshChoice& mesh) const {
    std::vector<Config> all = {with_mesh(base_, mesh)};
    const auto vary = [&](const std::string& key, const std::string& value, int stages) {
      if (base_.is_set(key) || !has_layers_for(stages, mesh.pipeline)) return;
      for (size_t i = 0, before = all.size(); i < before; ++i) {
        const auto problem = set_from_word(*find_key(key), all.emplace_back(all[i]), value);
        ORTHANT_CHECK(!problem, key, value);
      }
    };
    if (mesh.pipeline == 1) return all;
    vary("parallelism.pipeline_parallel_schedule", "v_min", 2);
    vary("parallelism.vocabulary_parallel", "algorithm_2", 1);
    return all;
  }

  /// Finds the layout that needs least memory, with the most recomputation, in ascending order of the bound.
  void search_smallest(const std::vector<BoundedMesh>& meshes, const SearchProgress& progress) {
    std::vector<std::pair<int64_t, std::pair<std::string, Config>>> all;
    int64_t least_batch = std::numeric_limits<int64_t>::max();
    for (const auto& [bound, mesh] : meshes) least_batch = std::min(least_batch, mesh.local_batch);
    for (const auto& [bound, mesh] : meshes) {
      if (mesh.local_batch != least_batch) continue;
      for (const Config& pipeline : lean_pipelines(mesh)) {
        auto bounds = bounds_of(pipeline, recomputations().back());
        if (!bounds) continue;
        for (Config& config : with_states(mesh, pipeline)) {
          config.activation_checkpoint = recomputations().back();
          const int64_t bytes = bounds->memory_bytes(config);
          all.emplace_back(bytes, std::pair(mesh.kind(), std::move(config)));
        }
      }
    }
    std::ranges::stable_sort(all, {}, [](const auto& entry) { return entry.first; });
    for (int64_t done = 0; const auto& [bytes, layout] : all) {
      if (result_.smallest && bytes >= result_.smallest->memory_bytes) return;
      add(layout.first, layout.second);
      if (!progress) continue;
      const auto end = result_.smallest ? std::ranges::lower_bound(all, result_.smallest->memory_bytes, {},
                                                                   [](const auto& entry) { return entry.first; })
                                        : all.end();
      ++done;
      progress(done, std::max<int64_t>(done, end - all.begin()));
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
  SearchResult result_;
  bool allows_idle_ranks_ = false;
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
                                                "training.local_batch_size"};
  return keys;
}

SearchResult search_layouts(const Config& config, const RunFacts& facts, const SearchProgress& progress) {
  return LayoutSearch(config, facts).run(progress);
}

}  // namespace orthant
