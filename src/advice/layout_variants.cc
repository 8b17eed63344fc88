#include "advice/layout_variants.h"

#include <algorithm>

#include "advice/candidates.h"
#include "advice/zero_choices.h"
#include "base/errors.h"
#include "config/from_config.h"
#include "config/table.h"

namespace orthant {
namespace {

bool has_mesh(const Config& config, int ranks) {
  try {
    make_mesh(config, ranks);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

bool LayoutVariants::has_layers_for(int stages, int64_t pipeline) const {
  return allows_idle_ranks_ || stages * pipeline <= base_.model.num_hidden_layers;
}

std::vector<int64_t> LayoutVariants::copy_numbers(int64_t data) const {
  if (base_.is_set("parallelism.data_parallel_replicate_degree")) return {};
  if (base_.is_set("parallelism.data_parallel_shard_degree")) return {};
  std::vector<int64_t> numbers = divisors_of(data);
  std::erase_if(numbers, [&](int64_t number) { return number == 1 || number == data; });
  return numbers;
}

std::vector<Config> LayoutVariants::states(const MeshChoice& mesh, const Config& config,
                                           const std::function<bool(const Config&)>& has_room) const {
  const ParallelismConfig& given = base_.parallelism;
  // A degree that is set to its default asks for no copies, which stage 0 permits.
  const bool copies_are_given =
      given.data_parallel_replicate_degree != ParallelismConfig().data_parallel_replicate_degree ||
      given.data_parallel_shard_degree != ParallelismConfig().data_parallel_shard_degree;
  std::vector<Config> all;
  const auto add_zero = [&](int64_t stage, Reshard reshard) {
    if (base_.is_set("parallelism.zero_stage") && stage != given.zero_stage) return false;
    if (base_.is_set("parallelism.zero_reshard") && name_of(reshard) != given.zero_reshard) return false;
    if (copies_are_given && stage == 0) return false;
    set_zero(all.emplace_back(config).parallelism, stage, reshard);
    return true;
  };
  add_zero(0, Reshard::step);
  // Ranks along the depth hold the same parameters, as data ranks do.
  const int64_t layer_shards = mesh.tensor.rows * mesh.tensor.columns * mesh.pipeline;
  if (facts_.ranks == layer_shards) return all.empty() ? std::vector{config} : all;
  const std::vector<int64_t> copies = copy_numbers(mesh.data);
  const auto add = [&](int64_t stage, Reshard reshard) {
    if (!add_zero(stage, reshard)) return;
    Config with_copies = all.back();
    const auto most = std::ranges::find_if(copies.rbegin(), copies.rend(), [&](int64_t number) {
      with_copies.parallelism.data_parallel_replicate_degree = number;
      return has_room(with_copies);
    });
    if (most != copies.rend()) all.push_back(with_copies);
  };
  for (const int64_t stage : {1, 2}) add(stage, Reshard::step);
  for (const Reshard reshard : {Reshard::step, Reshard::never, Reshard::microbatch}) add(3, reshard);
  if (copies_are_given) std::erase_if(all, [&](const Config& state) { return !has_mesh(state, facts_.ranks); });
  return all;
}

bool LayoutVariants::recomputation_is_given() const {
  return base_.is_set("activation_checkpoint.mode") || base_.is_set("activation_checkpoint.operations") ||
         base_.is_set("activation_checkpoint.layers");
}

std::vector<std::vector<ActivationCheckpointConfig>> LayoutVariants::recomputations() const {
  if (recomputation_is_given()) return {{base_.activation_checkpoint}};
  const auto setting = [&](const char* mode, std::vector<std::string> operations = {}) {
    return ActivationCheckpointConfig{
        .mode = mode, .operations = std::move(operations), .offload = base_.activation_checkpoint.offload};
  };
  return {{setting("none")},
          {setting("selective", {"norms", "swiglu"})},
          {setting("selective", {"norms", "attention", "swiglu"}), setting("selective", {"norms", "mlp"})},
          {setting("full")}};
}

std::vector<Config> LayoutVariants::pipelines(const Config& config) const {
  std::vector<Config> all;
  const auto add = [&](const std::string& key, int stages, const auto& change) {
    if (base_.is_set(key) || !has_layers_for(stages, config.parallelism.pipeline_parallel_degree)) return;
    change(all.emplace_back(config).parallelism);
  };
  for (const char* placement : {"redistribution", "algorithm_1", "algorithm_2"}) {
    add("parallelism.vocabulary_parallel", 1, [&](ParallelismConfig& p) { p.vocabulary_parallel = placement; });
  }
  add("parallelism.pipeline_parallel_layers", 1, [&](ParallelismConfig& p) { p.pipeline_parallel_layers = {-1}; });
  for (const auto& [schedule, stages] : {std::pair("interleaved_1f1b", 4), {"zb_h1", 1}, {"v_half", 2}, {"v_min", 2}}) {
    const int64_t more_stages = stages == 4 ? stages : 0;  // 0 is the schedule's own number
    const bool other_stages_are_given = base_.is_set("parallelism.pipeline_parallel_stages_per_rank") &&
                                        base_.parallelism.pipeline_parallel_stages_per_rank != more_stages;
    if (other_stages_are_given) continue;
    add("parallelism.pipeline_parallel_schedule", stages, [&](ParallelismConfig& p) {
      p.pipeline_parallel_schedule = schedule;
      p.pipeline_parallel_stages_per_rank = more_stages;
    });
  }
  return all;
}

std::vector<Config> LayoutVariants::axis_orders(const Config& config) const {
  const ParallelismConfig& p = config.parallelism;
  const bool has_both = p.pipeline_parallel_degree > 1 && p.data_parallel_degree > 1;
  const bool has_hosts = facts_.ranks > facts_.hardware->device.per_host;
  if (!has_both || !has_hosts || base_.is_set("parallelism.outer_axis")) return {};
  Config other = config;
  other.parallelism.outer_axis = "data";
  return {other};
}

std::vector<Config> LayoutVariants::token_placements(const Config& config) const {
  const ParallelismConfig& p = config.parallelism;
  const bool has_blocks = p.context_parallel_ring > 1 && p.context_parallel_attention == "ring_attention";
  if (!has_blocks || base_.is_set("parallelism.context_parallel_placement")) return {};
  Config other = config;
  other.parallelism.context_parallel_placement = "stripe";
  return {other};
}

std::vector<Config> LayoutVariants::copies(const Config& config) const {
  const auto& p = config.parallelism;
  std::vector<Config> all;
  const auto add = [&](int64_t stage, const std::string& reshard, int64_t copies) {
    if (base_.is_set("parallelism.zero_stage") && stage != base_.parallelism.zero_stage) return;
    if (base_.is_set("parallelism.zero_reshard") && reshard != base_.parallelism.zero_reshard) return;
    ParallelismConfig& other = all.emplace_back(config).parallelism;
    other.zero_stage = stage, other.zero_reshard = reshard, other.data_parallel_replicate_degree = copies;
  };
  for (const int64_t copies : copy_numbers(p.data_parallel_degree)) {
    if (p.zero_stage == 1 || p.zero_stage == 2) add(p.zero_stage, p.zero_reshard, copies);
    for (const char* reshard : {"never", "microbatch"}) add(3, reshard, copies);
  }
  return all;
}

Config LayoutVariants::with_recomputation(Config config, std::vector<std::string> operations, int64_t layers) const {
  config.activation_checkpoint = {.mode = "selective",
                                  .operations = std::move(operations),
                                  .layers = layers,
                                  .offload = base_.activation_checkpoint.offload};
  return config;
}

std::vector<Config> LayoutVariants::partial_recomputations(const Config& config) const {
  std::vector<Config> all;
  if (recomputation_is_given()) return all;
  for (const int64_t layers : {1, 2}) {
    all.push_back(with_recomputation(config, {"norms"}, layers));
    all.push_back(with_recomputation(config, {"swiglu"}, layers));
    all.push_back(with_recomputation(config, {"norms", "mlp"}, layers));
  }
  all.push_back(with_recomputation(config, {"norms", "swiglu"}, 2));
  return all;
}

std::vector<Config> LayoutVariants::sparse_recomputations(const Config& config) const {
  std::vector<Config> all;
  if (recomputation_is_given() || config.activation_checkpoint.mode == "none") return all;
  constexpr int64_t kSparsest = 8;
  for (int64_t layers = 3; layers <= std::min(kSparsest, base_.model.num_hidden_layers); ++layers) {
    for (const char* operation : {"norms", "swiglu", "mlp"}) {
      all.push_back(with_recomputation(config, {operation}, layers));
    }
  }
  return all;
}

std::vector<Config> LayoutVariants::lean_pipelines(const MeshChoice& mesh) const {
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

}  // namespace orthant
