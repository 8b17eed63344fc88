// Laws of tensor meshes.
#include "config/tensor_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/text.h"
#include "config/refusal.h"
#include "parallel/sequence/placement_plan.h"
#include "parallel/tensor/volume_plan.h"

namespace orthant {
namespace {

int64_t num_shards(const TensorPlan& plan, int64_t data) { return data * plan.rows * plan.depth; }

// Rows and depth must have equal shards of the batch, because they compute a microbatch together.
bool batch_divides(const Config& config, const TensorPlan& plan, int64_t data) {
  return plan.rows * plan.depth == 1 || config.training.global_batch_size % num_shards(plan, data) == 0;
}

// Each column computes attention of an equal number of query heads. It receives the key heads that these read from the
// columns that have the rows of their weights (key_heads_plan.h).
bool heads_divide(const Config& config, const TensorPlan& plan) {
  return config.model.num_attention_heads % plan.columns == 0;
}

// Ulysses distributes the heads of a column over its ranks, so every rank must get one.
bool heads_suffice(const Config& config, const TensorPlan& plan, int64_t ulysses) {
  return config.model.num_attention_heads / plan.columns >= ulysses;
}

// Rows and columns each shard the width of the residual stream and that of the MLP.
bool widths_suffice(const Config& config, const TensorPlan& plan) {
  return std::min(config.model.hidden_size, config.model.intermediate_size) >= std::max(plan.rows, plan.columns);
}

// Columns must divide the tokens that each rank holds of a sequence. Returns such a number of tokens that they do not
// divide, or 0.
int64_t find_indivisible_tokens(int64_t seq_len, const TensorPlan& plan, const SequencePlan& sequence) {
  if (plan.stream != StreamSharding::tokens) return 0;
  for (int ring = 0; ring < sequence.ring; ++ring) {
    for (int ulysses = 0; ulysses < sequence.ulysses; ++ulysses) {
      const int64_t tokens =
          num_held_positions(sequence.placement, seq_len, sequence.ulysses, ulysses, sequence.ring, ring);
      if (tokens % plan.columns != 0) return tokens;
    }
  }
  return 0;
}

constexpr const char* kKind = "parallelism.tensor_parallel_kind";
constexpr const char* kMesh = "parallelism.tensor_parallel_mesh";
constexpr const char* kDegree = "parallelism.tensor_parallel_degree";
constexpr const char* kProduct = "parallelism.tensor_parallel_product";
constexpr const char* kSequence = "parallelism.tensor_parallel_sequence";

}  // namespace

bool is_one_number(const Config& config) {
  const std::string& kind = config.parallelism.tensor_parallel_kind;
  return kind == "1d" || kind == "auto";
}

void check_tensor_kind(const Config& config) {
  const auto& p = config.parallelism;
  const auto [rows, columns, depth] = p.tensor_parallel_mesh;
  const bool one_number = is_one_number(config);
  if (one_number) {
    for (const char* key : {kMesh, kProduct}) {
      if (has_default(config, key)) continue;
      refuse(config, key, fmt::format("requires {} \"2d\" or \"2.5d\", but {}", kKind, config.locate(kKind)), {kKind});
    }
  } else {
    require_default(config, kDegree, kKind);
  }
  const bool one_rank =
      p.tensor_parallel_kind == "auto" ? p.tensor_parallel_degree == 1 : std::max({rows, columns, depth}) == 1;
  if (one_rank && p.tensor_parallel_kind != "1d") {
    refuse(config, one_number ? kDegree : kMesh, fmt::format("must be several ranks with {}", config.locate(kKind)),
           {kKind});
  }
  if (p.tensor_parallel_kind == "2d" && depth != 1)
    refuse(config, kMesh, fmt::format("must have depth 1 with {}", config.locate(kKind)), {kKind});
  if (!one_number && rows == 1 && columns == 1) require_default(config, kProduct, kMesh);
  if (p.tensor_parallel_kind != "1d") require_default(config, kSequence, kKind);
}

std::optional<Refusal> find_tensor_refusal(const Config& config, const TensorPlan& plan, const SequencePlan& sequence,
                                           int64_t data) {
  const std::string columns = counted(plan.columns, "column");
  if (!heads_divide(config, plan)) {
    const std::string key = "model.num_attention_heads";
    return Refusal(fmt::format("{} must divide {}", columns, config.locate(key)), {key},
                   {static_cast<double>(plan.columns)});
  }
  if (!heads_suffice(config, plan, sequence.ulysses)) {
    return Refusal(fmt::format("{} over {} must leave at least {}, one for each rank of {}",
                               config.locate("model.num_attention_heads"), columns, counted(sequence.ulysses, "head"),
                               config.locate("parallelism.context_parallel_ulysses")),
                   {"parallelism.context_parallel_ulysses", "model.num_attention_heads"},
                   {static_cast<double>(plan.columns * sequence.ulysses)});
  }
  if (!widths_suffice(config, plan)) {
    return Refusal(fmt::format("{} and {} must each be at most {} and {}", counted(plan.rows, "row"), columns,
                               config.locate("model.hidden_size"), config.locate("model.intermediate_size")),
                   {"model.hidden_size", "model.intermediate_size"},
                   {static_cast<double>(std::max(plan.rows, plan.columns))});
  }
  const int64_t head_dim = config.model.head_dim > 0 ? config.model.head_dim
                                                     : config.model.hidden_size / config.model.num_attention_heads;
  if (config.optimizer.name == "muon" && config.model.num_attention_heads * head_dim < plan.rows) {
    return Refusal(fmt::format("{} must be at most the {} elements of all heads with {}, because every row exchanges a "
                               "part of each matrix",
                               counted(plan.rows, "row"), config.model.num_attention_heads * head_dim,
                               config.locate("optimizer.name")),
                   {"model.head_dim", "optimizer.name"}, {static_cast<double>(plan.rows)});
  }
  if (const int64_t tokens = find_indivisible_tokens(config.training.seq_len, plan, sequence); tokens > 0) {
    const int64_t parts = pieces(sequence.placement, sequence.ulysses, sequence.ring);
    return Refusal(fmt::format("{} must divide the {} that a rank holds of a sequence, with {}", columns,
                               counted(tokens, "token"), config.locate("training.seq_len")),
                   {"training.seq_len", kSequence}, {static_cast<double>(parts * plan.columns)});
  }
  if (!batch_divides(config, plan, data)) {
    return Refusal(fmt::format("rows x depth x data ranks = {} must divide {}", num_shards(plan, data),
                               config.locate("training.global_batch_size")),
                   {"training.global_batch_size"}, {static_cast<double>(num_shards(plan, data))});
  }
  return {};
}

void check_tensor_parallel(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data) {
  const auto misfit = find_tensor_refusal(config, plan, sequence, data);
  if (!misfit) return;
  const std::string key = is_one_number(config) ? kDegree : kMesh;
  std::vector<std::string> keys = {key};
  keys.insert(keys.end(), misfit->keys.begin(), misfit->keys.end());
  throw Refusal(fmt::format("{}: {}", config.locate(key), misfit->what()), keys, misfit->numbers);
}

}  // namespace orthant
