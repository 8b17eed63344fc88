// Checks the degrees of parallelism, and the keys that shard sequences and weights.
#include "config/parallelism_check.h"

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "config/refusal.h"
#include "config/table.h"
#include "config/tensor_check.h"
#include "parallel/sequence/placement_plan.h"

namespace orthant {
namespace {

constexpr std::string_view kDegrees[] = {
    "parallelism.data_parallel_degree",  "parallelism.tensor_parallel_degree",   "parallelism.context_parallel_ulysses",
    "parallelism.context_parallel_ring", "parallelism.pipeline_parallel_degree", "parallelism.expert_parallel_degree",
};

// Keys that configure the ranks of one degree. While the degree is 1 they have no effect and must have their defaults.
struct DegreeSetting {
  std::string_view key, degree;
};
constexpr DegreeSetting kDegreeSettings[] = {
    {"parallelism.tensor_parallel_sequence", "parallelism.tensor_parallel_degree"},
    {"parallelism.context_parallel_attention", "parallelism.context_parallel_ring"},
    {"parallelism.context_parallel_placement", "parallelism.context_parallel_ring"},
    {"parallelism.context_parallel_window", "parallelism.context_parallel_ring"},
    {"parallelism.context_parallel_reduction", "parallelism.context_parallel_ring"},
    {"parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_degree"},
    {"parallelism.pipeline_parallel_stages_per_rank", "parallelism.pipeline_parallel_degree"},
    {"parallelism.pipeline_parallel_layers", "parallelism.pipeline_parallel_degree"},
    {"parallelism.vocabulary_parallel", "parallelism.pipeline_parallel_degree"},
    {"parallelism.pipeline_parallel_post_validation", "parallelism.pipeline_parallel_degree"},
};

int64_t degree(const Config& config, std::string_view key) {
  return *std::get<int64_t*>(find_key(key)->field(const_cast<Config&>(config)));
}

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

// `size` is the degree on these ranks, or -1 if it is not known yet.
void check_degree_settings(const Config& config, std::string_view degree_key, int64_t size) {
  if (size != 1) return;
  for (const DegreeSetting& setting : kDegreeSettings) {
    if (setting.degree != degree_key || has_default(config, setting.key)) continue;
    const char* rest = degree(config, degree_key) == -1 ? ", which is 1 on these ranks" : "";
    refuse(config, setting.key, fmt::format("has no effect with {}{}", config.locate(degree_key), rest),
           {std::string(degree_key)});
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
  if (p.context_parallel_reduction != "reduce_scatter" && p.context_parallel_attention != "ring_self_attention") {
    refuse(config, kReduction, fmt::format("requires ring_self_attention, but {}", config.locate(kAttention)),
           {kAttention});
  }
}

void check_window(const Config& config, int64_t ring) {
  const int64_t window = config.parallelism.context_parallel_window;
  constexpr const char* kWindow = "parallelism.context_parallel_window";
  if (window == 0) return;
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

void check_context_parallel(const Config& config, int64_t ulysses, int64_t ring) {
  const auto& p = config.parallelism;
  check_degree_settings(config, kRingKey, ring);
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
  for (const std::string_view key : kDegrees) check_degree_settings(config, key, degree(config, key));
  check_tensor_kind(config);
  // This early check needs degrees that fit run.ranks. Other degrees are checked together with the mesh, which refuses
  // degrees that do not fit the ranks.
  const int64_t ulysses = config.parallelism.context_parallel_ulysses, ring = config.parallelism.context_parallel_ring;
  const int64_t ranks = config.run.ranks;
  const bool known = ulysses != -1 && ring != -1 && ulysses <= ranks && ring <= ranks;
  if (known && ranks % (ulysses * ring) == 0) check_context_parallel(config, ulysses, ring);
}

}  // namespace orthant
