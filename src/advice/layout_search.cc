#include "advice/layout_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "advice/layout_bounds.h"
#include "advice/layout_planner.h"
#include "advice/layout_variants.h"
#include "advice/mesh_choices.h"
#include "base/cores.h"
#include "base/errors.h"
#include "config/table.h"

namespace orthant {
namespace {

constexpr size_t kRefined = 16;      // layouts that are varied further
constexpr size_t kMeshesAtOnce = 8;  // that are planned with the same limits

// The keys of a MeshChoice.
const std::vector<std::string>& mesh_keys() {
  static const std::vector<std::string> keys = {"parallelism.tensor_parallel_kind",
                                                "parallelism.tensor_parallel_degree",
                                                "parallelism.tensor_parallel_mesh",
                                                "parallelism.tensor_parallel_sequence",
                                                "parallelism.pipeline_parallel_degree",
                                                "parallelism.context_parallel_ulysses",
                                                "parallelism.context_parallel_ring",
                                                "parallelism.data_parallel_degree",
                                                "training.local_batch_size"};
  return keys;
}

class LayoutSearch {
 public:
  LayoutSearch(const Config& config, const RunFacts& facts)
      : base_(config),
        facts_(facts),
        variants_(base_, facts),
        parameters_(config, facts),
        planner_(base_, facts, variants_, parameters_) {
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
        result_.refused += searched_.insert(settings_of(with_mesh(base_, mesh), mesh_keys())).second ? 1 : 0;
      }
    }
    std::ranges::stable_sort(meshes, {}, &BoundedMesh::first);
    return meshes;
  }

  /// Plans several meshes at once. Their limits are those before the first of them, whatever the number of cores is.
  void search_meshes(const std::vector<BoundedMesh>& meshes, const SearchProgress& progress) {
    result_.meshes = std::ssize(meshes), result_.left_out = 0;
    for (auto next = meshes.begin(); next != meshes.end();) {
      std::vector<std::pair<MeshChoice, double>> wanted;  // each with its limit
      for (; next != meshes.end() && wanted.size() < kMeshesAtOnce; ++next) {
        if (!searched_.insert(settings_of(with_mesh(base_, next->second), mesh_keys())).second) continue;
        const double limit_s = limit(next->second.kind());
        if (next->first < limit_s) {
          wanted.emplace_back(next->second, limit_s);
        } else {
          ++result_.left_out;
        }
      }
      std::vector<std::vector<Planned>> planned(wanted.size());
      for_each_on_all_cores(wanted.size(), [&](size_t i, size_t /*worker*/) {
        planned[i] = planner_.plan_all(wanted[i].first, wanted[i].second);
      });
      for (std::vector<Planned>& of_mesh : planned) add(std::move(of_mesh));
      if (progress) progress(next - meshes.begin(), result_.meshes);
    }
  }

  /// Only shorter steps than this are of interest: than the tenth best, or than the best of the kind if that is near
  /// the best of all.
  double limit(const std::string& kind) const {
    if (best_.size() < kShown) return INFINITY;
    const auto best = best_of_kind_.find(kind);
    const double of_kind = best == best_of_kind_.end() ? INFINITY : best->second;
    return std::max(*std::next(best_.begin(), kShown - 1), std::min(of_kind, kNearBest * *best_.begin()));
  }

  /// Plans the best layouts found so far again: pipelines with the other order of axes over hosts, and with other
  /// schedules and placements of layers and vocabulary; rings with the other placement of tokens; and all with other
  /// copies of sharded states, and with other recomputations; the best one also with recomputation in few blocks.
  void refine() {
    const auto is_pipeline = [](const Config& config) { return config.parallelism.pipeline_parallel_degree > 1; };
    const auto is_ring = [](const Config& config) { return config.parallelism.context_parallel_ring > 1; };
    const auto any = [](const Config&) { return true; };
    vary(best_layouts(is_pipeline, mesh_keys(), true), &LayoutVariants::axis_orders);
    for (int times = 0; times < 2; ++times) {  // so that a schedule and a placement may change together
      vary(best_layouts(is_pipeline, searched_keys(), false), &LayoutVariants::pipelines);
    }
    vary(best_layouts(is_pipeline, mesh_keys(), false), &LayoutVariants::axis_orders);
    vary(best_layouts(is_ring, searched_keys(), false), &LayoutVariants::token_placements);
    vary(best_layouts(any, mesh_keys(), true), &LayoutVariants::copies);
    vary(best_layouts(any, searched_keys(), true), &LayoutVariants::partial_recomputations);
    std::vector<Candidate> best = best_layouts(any, searched_keys(), false);
    best.resize(std::min<size_t>(best.size(), 1));
    vary(best, &LayoutVariants::sparse_recomputations);
  }

  void vary(const std::vector<Candidate>& layouts,
            std::vector<Config> (LayoutVariants::*variants)(const Config&) const) {
    std::vector<std::pair<Candidate, double>> wanted;  // each with its limit
    for (const auto& [kind, config] : layouts) {
      for (Config& other : (variants_.*variants)(config)) {
        if (!planned_.contains(settings_of(other))) wanted.push_back({{kind, std::move(other)}, limit(kind)});
      }
    }
    std::vector<Planned> planned(wanted.size());
    for_each_on_all_cores(wanted.size(), [&](size_t i, size_t /*worker*/) {
      planned[i] = planner_.plan(wanted[i].first, wanted[i].second);
    });
    add(std::move(planned));
  }

  /// The best layouts that are wanted and differ in these keys, and with `of_each_kind` the best one of each kind.
  std::vector<Candidate> best_layouts(const std::function<bool(const Config&)>& wanted,
                                      const std::vector<std::string>& keys, bool of_each_kind) {
    sort_fitting();
    std::vector<Candidate> best;
    std::set<std::string> kinds, different;
    for (const FoundLayout& found : result_.fitting) {
      if (!wanted(found.config) || !different.insert(settings_of(found.config, keys)).second) continue;
      const bool is_new = kinds.insert(found.kind).second;
      if (different.size() <= kRefined || (is_new && of_each_kind)) best.push_back({found.kind, found.config});
    }
    return best;
  }

  // A layout with the most recomputation.
  struct BoundedCandidate {
    Candidate layout;
    size_t pipeline;                                       // index of the passes that it shares with others
    enum { state_bytes, passes, few_microbatches } bound;  // what the bound of its memory counts; each counts more
  };

  /// Finds the layout that needs least memory. Layouts are in ascending order of a bound of it, and the first one gets
  /// the next better bound. Most are left out by a bound that costs little.
  void search_smallest(const std::vector<BoundedMesh>& meshes, const SearchProgress& progress) {
    std::vector<Config> pipelines;
    std::multimap<int64_t, BoundedCandidate> open;
    int64_t least_batch = std::numeric_limits<int64_t>::max();
    for (const auto& [bound, mesh] : meshes) least_batch = std::min(least_batch, mesh.local_batch);
    for (const auto& [bound, mesh] : meshes) {
      if (mesh.local_batch != least_batch) continue;
      for (Config& pipeline : variants_.lean_pipelines(mesh)) {
        pipeline.activation_checkpoint = variants_.recomputations().back().front();
        for (const Config& config : planner_.states_of(mesh, pipeline)) {
          open.emplace(planner_.least_state_bytes(config),
                       BoundedCandidate{{mesh.kind(), config}, pipelines.size(), BoundedCandidate::state_bytes});
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
      auto& [layout, pipeline, counted] = node.mapped();
      if (counted == BoundedCandidate::few_microbatches) {
        if (!planned_.contains(settings_of(layout.config))) add({planner_.plan(layout, INFINITY)});
      } else if (counted == BoundedCandidate::passes) {
        node.key() = std::max(node.key(), planner_.bytes_with_few_microbatches(layout.config));
        counted = BoundedCandidate::few_microbatches;
        open.insert(std::move(node));
      } else {
        const auto [found, is_new] = bounds.try_emplace(pipeline);
        if (is_new) found->second = planner_.bounds_of(pipelines[pipeline], variants_.recomputations().back().front());
        if (!found->second) continue;
        node.key() = found->second->memory_bytes(layout.config);
        counted = BoundedCandidate::passes;
        open.insert(std::move(node));
      }
      if (progress) progress(done, done + std::ssize(open));
    }
  }

  /// Adds the layouts that fit, and those that are too large.
  void add(std::vector<Planned> planned) {
    for (auto& [outcome, layout] : planned) {
      result_.refused += outcome == Planned::refused ? 1 : 0;
      if (!layout || !planned_.insert(settings_of(layout->config)).second) continue;
      if (!result_.smallest || layout->memory_bytes < result_.smallest->memory_bytes) result_.smallest = layout;
      if (outcome != Planned::fits) continue;
      if (rows_.insert(row_of(*layout)).second) best_.insert(layout->time.seconds);
      const auto [best, is_new] = best_of_kind_.try_emplace(layout->kind, layout->time.seconds);
      best->second = std::min(best->second, layout->time.seconds);
      result_.fitting.push_back(std::move(*layout));
    }
    result_.planned = std::ssize(planned_);
  }

  static std::string settings_of(const Config& config, const std::vector<std::string>& keys = searched_keys()) {
    std::string settings;
    for (const std::string& key : keys) settings += value_text(*find_key(key), config) + "\n";
    return settings;
  }

  Config base_;
  const RunFacts& facts_;
  LayoutVariants variants_;
  const ModelParameters parameters_;
  const LayoutPlanner planner_;
  SearchResult result_;
  std::set<std::string> searched_;              // settings_of() meshes that were searched
  std::set<std::string> planned_;               // settings_of() all planned layouts
  std::set<std::string> rows_;                  // row_of() the layouts that fit
  std::multiset<double> best_;                  // step times of the layouts that fit, each row once
  std::map<std::string, double> best_of_kind_;  // the shortest of each kind of layouts
};

}  // namespace

const std::vector<std::string>& searched_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all = mesh_keys();
    all.insert(all.end(),
               {"parallelism.layout", "parallelism.zero_stage", "parallelism.zero_reshard",
                "parallelism.data_parallel_replicate_degree", "parallelism.pipeline_parallel_schedule",
                "parallelism.pipeline_parallel_stages_per_rank", "parallelism.pipeline_parallel_layers",
                "parallelism.vocabulary_parallel", "parallelism.outer_axis", "parallelism.context_parallel_placement",
                "activation_checkpoint.mode", "activation_checkpoint.operations", "activation_checkpoint.layers"});
    return all;
  }();
  return keys;
}

SearchResult search_layouts(const Config& config, const RunFacts& facts, const SearchProgress& progress) {
  return LayoutSearch(config, facts).run(progress);
}

}  // namespace orthant
