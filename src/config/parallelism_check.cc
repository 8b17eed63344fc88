// Checks the degrees of parallelism, and the keys that shard sequences and weights.
#include "config/parallelism_check.h"

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
      refuse(config, key,
             fmt::format("and {}: only one degree can be the rest of the ranks; give the other a number",
                         config.locate(first)));
    }
    first = key;
  }
}

// `size` is the degree on these ranks, or -1 if it is not known yet.
void check_degree_settings(const Config& config, std::string_view degree_key, int64_t size) {
  if (size != 1) return;
  const char* how = degree(config, degree_key) == 1 ? "while that is 1" : "where the rest is one rank";
  for (const DegreeSetting& setting : kDegreeSettings) {
    if (setting.degree != degree_key) continue;
    require_default(config, setting.key,
                    fmt::format("it belongs to {} and changes nothing {}", config.locate(degree_key), how));
  }
}

// Returns the legal windows of a ring that are nearest to `asked`, below and above; 0 if the ring has none.
std::vector<Remedy> nearest_windows(int64_t ring, int64_t asked) {
  const auto window = [](int64_t size) {
    return Remedy{{"parallelism.context_parallel_window", fmt::format("{}", size)}};
  };
  std::vector<Remedy> ways;
  for (int64_t i = 2; i < ring; ++i) {
    if (ring % i != 0) continue;
    if (i < asked) ways = {window(i)};
    if (i > asked) {
      ways.push_back(window(i));
      break;
    }
  }
  return ways.empty() ? std::vector<Remedy>{window(0)} : ways;
}

// Suggests the largest divisor of the Ulysses degree that the number of heads permits. The ring takes the other ranks.
Remedy fewer_ulysses(const Config& config, int64_t ulysses) {
  int64_t fewer = std::min(ulysses, config.model.num_attention_heads);
  while (ulysses % fewer != 0) --fewer;
  Remedy way = {{"parallelism.context_parallel_ulysses", fmt::format("{}", fewer)}};
  const int64_t ring = config.parallelism.context_parallel_ring;
  if (ring != -1) way.push_back({"parallelism.context_parallel_ring", fmt::format("{}", ring * ulysses / fewer)});
  return way;
}

}  // namespace

void check_context_parallel(const Config& config, int64_t ulysses, int64_t ring) {
  const auto& p = config.parallelism;
  check_degree_settings(config, "parallelism.context_parallel_ring", ring);
  if (ulysses > config.model.num_attention_heads) {
    refuse(config, "parallelism.context_parallel_ulysses",
           fmt::format("leaves ranks without a head: {}", config.locate("model.num_attention_heads")),
           {fewer_ulysses(config, ulysses)});
  }
  const bool linformer = p.context_parallel_attention == "linformer";
  if (linformer && config.model.linformer_length == 0) {
    refuse(config, "parallelism.context_parallel_attention",
           fmt::format("adds up summaries, and {}", config.locate("model.linformer_length")),
           {{{"parallelism.context_parallel_attention", "\"ring_attention\""}},
            {{"model.linformer_length", fmt::format("{}", std::max<int64_t>(1, config.training.seq_len / 4))}}});
  }
  require(config, "parallelism.context_parallel_attention",
          linformer || config.model.linformer_length == 0 || ring == 1,
          fmt::format("with {}, the ring adds up summaries", config.locate("model.linformer_length")), "\"linformer\"");
  require(config, "parallelism.context_parallel_placement",
          !linformer || p.context_parallel_placement == "contiguous" || ring == 1,
          "Linformer's ranks hold neighbouring tokens, as they hold neighbouring rows of its projections",
          "\"contiguous\"");
  const int64_t pieces = orthant::pieces(sequence_placement_of(p.context_parallel_placement), ulysses, ring);
  const std::string degrees = fmt::format("{} and {}", config.locate("parallelism.context_parallel_ulysses"),
                                          config.locate("parallelism.context_parallel_ring"));
  if (pieces > config.model.max_position_embeddings) {
    refuse(config, "model.max_position_embeddings",
           fmt::format("is less than the {} pieces of a sequence that {} make", pieces, degrees),
           {{{"model.max_position_embeddings", fmt::format("{}", pieces)}}});
  }
  if (pieces > config.training.seq_len) {
    refuse(config, "training.seq_len",
           fmt::format("is cut into {} pieces, for {}", pieces, degrees),
           {{{"training.seq_len", fmt::format("{}", pieces)}}});
  }
  const bool self_attention = p.context_parallel_attention == "ring_self_attention";
  if (p.context_parallel_window > 0 && ring % p.context_parallel_window != 0) {
    refuse(config, "parallelism.context_parallel_window",
           fmt::format("does not divide {}{}", config.locate("parallelism.context_parallel_ring"),
                       p.context_parallel_ring == -1 ? fmt::format(", which leaves a ring of {}", ring) : ""),
           nearest_windows(ring, p.context_parallel_window));
  }
  if (p.context_parallel_window == 1 || p.context_parallel_window == ring) {
    refuse(config, "parallelism.context_parallel_window",
           fmt::format("makes one ring of {}, as 0 does", counted(ring, "rank")),
           {{{"parallelism.context_parallel_window", "0"}}});
  }
  require(config, "parallelism.context_parallel_window",
          p.context_parallel_window == 0 || p.context_parallel_attention == "ring_attention",
          fmt::format("{} has one ring", p.context_parallel_attention), "0");
  require(config, "parallelism.context_parallel_reduction",
          p.context_parallel_reduction == "reduce_scatter" || self_attention, "it belongs to ring_self_attention",
          "\"reduce_scatter\"");
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
