// Checks the degrees of parallelism, and the keys that shard sequences and weights.
#include "config/parallelism_check.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/from_config.h"
#include "config/refusal.h"
#include "config/table.h"
#include "config/tensor_check.h"
#include "mesh/axes.h"
#include "parallel/sequence/placement_plan.h"

namespace orthant {
namespace {

constexpr std::string_view kDegrees[] = {
    "parallelism.data_parallel_degree",  "parallelism.tensor_parallel_degree",   "parallelism.context_parallel_ulysses",
    "parallelism.context_parallel_ring", "parallelism.pipeline_parallel_degree", "parallelism.expert_parallel_degree",
};

// Keys that configure the ranks of one axis. They have no effect while the axis has 1 rank. The layers of stages are
// not among them: they must be those of the stages of 1 rank.
struct AxisSetting {
  std::string_view key, degree;
  const std::string& axis;
};
const AxisSetting kAxisSettings[] = {
    {"parallelism.tensor_parallel_sequence", "parallelism.tensor_parallel_degree", kColumn},
    {"parallelism.context_parallel_attention", "parallelism.context_parallel_ring", kRing},
    {"parallelism.context_parallel_placement", "parallelism.context_parallel_ring", kRing},
    {"parallelism.context_parallel_window", "parallelism.context_parallel_ring", kRing},
    {"parallelism.context_parallel_reduction", "parallelism.context_parallel_ring", kRing},
    {"parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_degree", kPipeline},
    {"parallelism.pipeline_parallel_stages_per_rank", "parallelism.pipeline_parallel_degree", kPipeline},
    {"parallelism.vocabulary_parallel", "parallelism.pipeline_parallel_degree", kPipeline},
    {"parallelism.pipeline_parallel_post_validation", "parallelism.pipeline_parallel_degree", kPipeline},
    {"parallelism.outer_axis", "parallelism.pipeline_parallel_degree", kPipeline},
    {"parallelism.outer_axis", "parallelism.data_parallel_degree", kData},
};

// True if the key has a value other than its default, but no effect on this mesh. A schedule file is read in any case.
bool is_idle(const AxisSetting& setting, const Config& config, const Mesh& mesh) {
  const bool is_file = setting.key == "parallelism.pipeline_parallel_schedule" &&
                       config.parallelism.pipeline_parallel_schedule.ends_with(".csv");
  const int ranks = setting.axis == kData ? data_ranks(mesh) : mesh.axis_size(setting.axis);
  return ranks == 1 && !is_file && !has_default(config, setting.key);
}

int64_t degree(const Config& config, std::string_view key) {
  return *std::get<int64_t*>(find_key(key)->field(const_cast<Config&>(config)));
}

constexpr const char *kZeroStage = "parallelism.zero_stage", *kZeroReshard = "parallelism.zero_reshard";
// True if no two ranks hold the same parameters, so that there is nothing to shard states over.
bool shards_over_one_rank(const Mesh& mesh) { return mesh.size() == mesh.axis_size(kPipeline); }

void check_degrees(const Config& config) {
  std::string first;
  for (const std::string_view key : kDegrees) {
    if (degree(config, key) != -1) continue;
    if (!first.empty()) {
      refuse(config, key, fmt::format("and {}: only one degree may be -1", config.locate(first)), {first});
    }
    first = key;
  }
}

constexpr const char* kAttention = "parallelism.context_parallel_attention";
constexpr const char* kRingKey = "parallelism.context_parallel_ring";
constexpr const char* kUlyssesKey = "parallelism.context_parallel_ulysses";

// Checks the laws of the method by which a ring computes attention.
void check_attention(const Config& config, int64_t ring) {
  const auto& p = config.parallelism;
  constexpr const char* kPlacement = "parallelism.context_parallel_placement";
  constexpr const char* kReduction = "parallelism.context_parallel_reduction";
  constexpr const char* kLength = "model.linformer_length";
  const bool linformer = p.context_parallel_attention == "linformer";
  if (linformer && config.model.linformer_length == 0) {
    refuse(config, kAttention, fmt::format("requires Linformer, but {}", config.locate(kLength)), {kLength},
           {std::max(1.0, static_cast<double>(config.training.seq_len / 4))});
  }
  if (!linformer && config.model.linformer_length > 0 && ring > 1) {
    refuse(config, kAttention, fmt::format("must be \"linformer\" with {}", config.locate(kLength)),
           {kLength, kRingKey}, {0});
  }
  if (linformer && p.context_parallel_placement != "contiguous" && ring > 1) {
    refuse(config, kPlacement, fmt::format("must be \"contiguous\" with {}", config.locate(kAttention)), {kAttention});
  }
  constexpr const char* kCap = "model.attn_logit_softcapping";
  if (p.context_parallel_attention == "ring_self_attention" && config.model.attn_logit_softcapping > 0 && ring > 1) {
    refuse(config, kAttention, fmt::format("must be \"ring_attention\" with {}", config.locate(kCap)),
           {kAttention, kCap, kRingKey}, {0});
  }
  if (p.context_parallel_reduction != "reduce_scatter" && p.context_parallel_attention != "ring_self_attention") {
    refuse(config, kReduction, fmt::format("requires ring_self_attention, but {}", config.locate(kAttention)),
           {kAttention});
  }
}

void check_window(const Config& config, int64_t ring) {
  const int64_t window = config.parallelism.context_parallel_window;
  constexpr const char* kWindow = "parallelism.context_parallel_window";
  if (window == 0 || ring == 1) return;
  if (config.parallelism.context_parallel_attention != "ring_attention") {
    refuse(config, kWindow, fmt::format("requires ring_attention, but {}", config.locate(kAttention)), {kAttention},
           {0});
  }
  if (window > 1 && window < ring && ring % window == 0) return;
  const std::string size = config.parallelism.context_parallel_ring == -1 ? fmt::format(", which is {}", ring) : "";
  refuse(config, kWindow, fmt::format("must be 0, or a divisor from 2 to half of {}{}", config.locate(kRingKey), size),
         {kRingKey}, {0, static_cast<double>(ring), static_cast<double>(window)});
}

}  // namespace

std::vector<std::string> idle_settings(const Config& config, const Mesh& mesh) {
  std::vector<std::string> texts;
  std::string_view last;  // of two reasons why a key is idle, the first counts
  for (const AxisSetting& setting : kAxisSettings) {
    if (!is_idle(setting, config, mesh) || std::exchange(last, setting.key) == setting.key) continue;
    texts.push_back(fmt::format("{} has no effect, because {} is 1 on these ranks",
                                config.locate(setting.key), setting.degree));
  }
  if (shards_over_one_rank(mesh) && config.parallelism.zero_stage > 0) {
    texts.push_back(config.locate(kZeroStage) + " has no effect, because only 1 rank holds each parameter");
  } else if (config.parallelism.zero_stage < 3 && !has_default(config, kZeroReshard)) {
    texts.push_back(fmt::format("{} has no effect, because {} is below 3", config.locate(kZeroReshard), kZeroStage));
  }
  return texts;
}

Config without_idle_settings(Config config, const Mesh& mesh) {
  static const Config defaults;
  const auto reset = [&](std::string_view key) {
    copy_value(*find_key(key), defaults, config);
    config.origins.erase(std::string(key));
  };
  for (const AxisSetting& setting : kAxisSettings) {
    if (!is_idle(setting, config, mesh)) continue;
    reset(setting.key);
  }
  if (shards_over_one_rank(mesh) && config.parallelism.zero_stage > 0) reset(kZeroStage);
  if (config.parallelism.zero_stage < 3 && !has_default(config, kZeroReshard)) reset(kZeroReshard);
  return config;
}

void check_context_parallel(const Config& config, int64_t ulysses, int64_t ring) {
  const auto& p = config.parallelism;
  if (ulysses > config.model.num_attention_heads) {
    const std::string size = p.context_parallel_ulysses == -1 ? fmt::format(", which is {},", ulysses) : "";
    refuse(config, kUlyssesKey,
           fmt::format("{} must be at most {}", size, config.locate("model.num_attention_heads")).substr(size.empty()),
           {"model.num_attention_heads"}, {static_cast<double>(ulysses)});
  }
  check_attention(config, ring);
  const int64_t pieces = orthant::pieces(sequence_placement_of(p.context_parallel_placement), ulysses, ring);
  if (pieces > config.training.seq_len) {
    refuse(config, "training.seq_len",
           fmt::format("must be at least {}, the pieces of a sequence for {} and {}", pieces,
                       config.locate(kUlyssesKey), config.locate(kRingKey)),
           {kRingKey, kUlyssesKey}, {static_cast<double>(pieces)});
  }
  check_window(config, ring);
}

void check_parallelism(const Config& config) {
  check_degrees(config);
  check_tensor_kind(config);
  // This early check needs degrees that fit run.ranks. Other degrees are checked together with the mesh, which refuses
  // degrees that do not fit the ranks.
  const int64_t ulysses = config.parallelism.context_parallel_ulysses, ring = config.parallelism.context_parallel_ring;
  const int64_t ranks = config.run.ranks;
  const bool known = ulysses != -1 && ring != -1 && ulysses <= ranks && ring <= ranks;
  if (known && ranks % (ulysses * ring) == 0) check_context_parallel(config, ulysses, ring);
}

}  // namespace orthant
