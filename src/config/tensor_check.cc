// Laws of tensor meshes, and the search for the nearest mesh, degree, batch or sequence length that fulfils them.
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

int64_t shares_of(const TensorPlan& plan, int64_t data) { return data * plan.rows * plan.depth; }

// Rows and depth must have equal shards of the batch, because they compute a microbatch together.
bool batch_divides(const Config& config, const TensorPlan& plan, int64_t data) {
  return plan.rows * plan.depth == 1 || config.training.global_batch_size % shares_of(plan, data) == 0;
}

bool heads_divide(const Config& config, const TensorPlan& plan) {
  return config.model.num_key_value_heads % plan.columns == 0;
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

// Returns the nearest training.seq_len for which columns divide the tokens of every rank; 0 if there is none.
int64_t nearest_seq_len(const Config& config, const TensorPlan& plan, const SequencePlan& sequence) {
  const int64_t asked = config.training.seq_len, most = config.model.max_position_embeddings;
  const int64_t parts = pieces(sequence.placement, sequence.ulysses, sequence.ring);
  const int64_t least = std::max<int64_t>(parts, config.model.linformer_length);
  for (int64_t apart = 1; apart <= parts * plan.columns; ++apart) {
    for (const int64_t seq_len : {asked + apart, asked - apart}) {
      if (seq_len >= least && seq_len <= most && find_indivisible_tokens(seq_len, plan, sequence) == 0) return seq_len;
    }
  }
  return 0;
}

// True if the file's tensor_parallel_kind, together with its other keys, permits this mesh.
bool of_kind(const Config& config, const TensorPlan& plan) {
  const auto& p = config.parallelism;
  if (p.tensor_parallel_kind == "1d") {
    if (plan.ranks() == 1 && !p.tensor_parallel_sequence) return false;  // the key has no effect on one rank
    return plan.stream == (p.tensor_parallel_sequence ? StreamSharding::tokens : StreamSharding::none);
  }
  if (plan.ranks() == 1 || (p.tensor_parallel_product == "summa" && plan.rows * plan.columns == 1)) return false;
  return plan.stream == StreamSharding::width && (plan.depth == 1 || p.tensor_parallel_kind == "2.5d");
}

// Returns the distance of a mesh from the file's: the sum over extents of |log(extent / extent asked for)|.
double distance(const Config& config, const TensorPlan& plan) {
  const auto& p = config.parallelism;
  const bool one_number = p.tensor_parallel_kind == "1d";
  const std::array<int64_t, 3> asked =
      one_number ? std::array<int64_t, 3>{1, p.tensor_parallel_degree, 1} : p.tensor_parallel_mesh;
  const auto apart = [](int have, int64_t want) {
    return std::abs(std::log(have) - std::log(static_cast<double>(want)));
  };
  return apart(plan.rows, asked[0]) + apart(plan.columns, asked[1]) + apart(plan.depth, asked[2]);
}

// Returns the ranks that the other degrees leave of run.ranks; 0 if they do not divide run.ranks.
int64_t ranks_left(const Config& config) {
  const auto& p = config.parallelism;
  int64_t left = config.run.ranks;
  for (const int64_t degree :
       {p.context_parallel_ulysses, p.context_parallel_ring, p.pipeline_parallel_degree, p.data_parallel_degree}) {
    if (degree == -1) continue;
    if (left % degree != 0) return 0;
    left /= degree;
  }
  return left;
}

// Returns the largest legal degree for the kinds "1d" and "auto" that is at most `most` and at most ranks_left(); 1 if
// there is none.
int64_t degree_of_ranks_left(const Config& config, int64_t most) {
  const int64_t left = ranks_left(config), data = config.parallelism.data_parallel_degree;
  const bool any_kind = config.parallelism.tensor_parallel_kind == "auto";
  const SequencePlan cut = cut_before_ranks(config);
  for (int64_t taken = std::min(left, most); taken > 1; --taken) {
    if (left % taken != 0 || (data != -1 && taken < left)) continue;
    const auto arrangements = tensor_arrangements(static_cast<int>(taken));
    const bool works = std::any_of(arrangements.begin(), arrangements.end(), [&](const TensorPlan& plan) {
      return (any_kind || of_kind(config, plan)) &&
             tensor_misfit(config, plan, cut, data == -1 ? left / taken : data).empty();
    });
    if (works) return taken;
  }
  return 1;
}

// Returns a legal tensor mesh (for "auto", a degree) of the ranks left, as its key writes it. It replaces a mesh of one
// rank, or a mesh whose depth the kind does not permit. Empty if no mesh is legal.
std::string mesh_of_ranks_left(const Config& config) {
  const auto& p = config.parallelism;
  const auto [rows, columns, depth] = p.tensor_parallel_mesh;
  const int64_t left = ranks_left(config), data = p.data_parallel_degree;
  if (left == 0) return "";
  const SequencePlan cut = cut_before_ranks(config);
  if (p.tensor_parallel_kind == "auto") {
    const int64_t degree = degree_of_ranks_left(config, left);
    return degree > 1 ? fmt::format("{}", degree) : "";
  }
  // First choice is a mesh with the same number of ranks, then one with all ranks left, then one with fewer.
  std::optional<TensorPlan> plan;
  const int64_t asked = std::max({rows, columns, depth}) <= left ? rows * columns * depth : left;
  if (data == -1 && left % asked == 0) plan = nearest_tensor_plan(config, cut, asked, left / asked);
  if (!plan) plan = nearest_tensor_plan(config, cut, left, std::max<int64_t>(data, 1));
  if (!plan && data == -1) plan = nearest_tensor_plan(config, cut, left, -1);
  return plan ? mesh_text(*plan) : "";
}

// Refuses tensor_parallel_mesh and tensor_parallel_product for kinds without a mesh. If a mesh is set and the kind is a
// default, the way out is another kind. Otherwise it resets these keys; to use the ranks of the mesh, it may set
// tensor_parallel_degree.
void refuse_mesh(const Config& config) {
  const auto& p = config.parallelism;
  const ParallelismConfig defaults;
  const auto [rows, columns, depth] = p.tensor_parallel_mesh;
  const bool has_mesh = p.tensor_parallel_mesh != defaults.tensor_parallel_mesh;
  const bool has_product = p.tensor_parallel_product != defaults.tensor_parallel_product;
  if (!has_mesh && !has_product) return;
  Remedy way;
  if (has_mesh && !config.origins.contains("parallelism.tensor_parallel_kind")) {
    way = {{"parallelism.tensor_parallel_kind", depth > 1 ? "\"2.5d\"" : "\"2d\""}};
  } else {
    if (has_mesh) way.push_back({"parallelism.tensor_parallel_mesh", mesh_text({})});
    if (has_product) way.push_back({"parallelism.tensor_parallel_product", "\"stationary\""});
    const bool countable = std::max({rows, columns, depth}) <= config.run.ranks;
    const int64_t degree = has_mesh && countable && p.tensor_parallel_degree == 1
                               ? degree_of_ranks_left(config, rows * columns * depth)
                               : 1;
    if (degree > 1) way.push_back({"parallelism.tensor_parallel_degree", fmt::format("{}", degree)});
  }
  const char* key = has_mesh ? "parallelism.tensor_parallel_mesh" : "parallelism.tensor_parallel_product";
  throw Refusal("",
                fmt::format("{} belongs to parallelism.tensor_parallel_kind \"2d\" and \"2.5d\", but {}",
                            config.locate(key), config.locate("parallelism.tensor_parallel_kind")),
                {way});
}

}  // namespace

void check_tensor_kind(const Config& config) {
  const auto& p = config.parallelism;
  const std::string kind = config.locate("parallelism.tensor_parallel_kind");
  if (p.tensor_parallel_kind == "1d" || p.tensor_parallel_kind == "auto") {
    refuse_mesh(config);
  } else {
    require_default(config, "parallelism.tensor_parallel_degree",
                    fmt::format("with {}, parallelism.tensor_parallel_mesh says how many ranks", kind));
  }
  const auto [rows, columns, depth] = p.tensor_parallel_mesh;
  const bool chosen = p.tensor_parallel_kind == "auto";
  const bool one_rank = chosen ? p.tensor_parallel_degree == 1 : std::max({rows, columns, depth}) == 1;
  if (one_rank && p.tensor_parallel_kind != "1d") {
    const char* key = chosen ? "parallelism.tensor_parallel_degree" : "parallelism.tensor_parallel_mesh";
    const std::string more = mesh_of_ranks_left(config);
    std::vector<Remedy> ways = {{{"parallelism.tensor_parallel_kind", "\"1d\""}}};
    if (!more.empty()) ways.insert(ways.begin(), {{key, more}});
    refuse(config, "parallelism.tensor_parallel_kind",
           fmt::format("cuts nothing: {} is one rank", config.locate(key)), ways);
  }
  if (p.tensor_parallel_kind == "2d" && depth != 1) {
    const std::string mesh = mesh_of_ranks_left(config);
    std::vector<Remedy> ways = {{{"parallelism.tensor_parallel_kind", "\"2.5d\""}}};
    if (!mesh.empty()) ways.insert(ways.begin(), {{"parallelism.tensor_parallel_mesh", mesh}});
    refuse(config, "parallelism.tensor_parallel_mesh", "has more than two dimensions, and \"2d\" has depth 1", ways);
  }
  if (rows == 1 && columns == 1 && (p.tensor_parallel_kind == "2d" || p.tensor_parallel_kind == "2.5d")) {
    require_default(config, "parallelism.tensor_parallel_product", "no product is cut on a mesh of one row and column");
  }
  if (p.tensor_parallel_kind != "1d") {
    require_default(config, "parallelism.tensor_parallel_sequence",
                    fmt::format("it belongs to the kind \"1d\", but {}", kind));
  }
}

std::string tensor_misfit(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data) {
  if (!heads_divide(config, plan)) {
    return fmt::format("{} of heads do not divide {}", counted(plan.columns, "column"),
                       config.locate("model.num_key_value_heads"));
  }
  if (!heads_suffice(config, plan, sequence.ulysses)) {
    return fmt::format("{} leave {} of {}, which is less than the {} of {}", counted(plan.columns, "column"),
                       counted(config.model.num_attention_heads / plan.columns, "head"),
                       config.locate("model.num_attention_heads"), counted(sequence.ulysses, "rank"),
                       config.locate("parallelism.context_parallel_ulysses"));
  }
  if (!widths_suffice(config, plan)) {
    return fmt::format("{} and {} cut {} and {}, which are not as wide", counted(plan.rows, "row"),
                       counted(plan.columns, "column"), config.locate("model.hidden_size"),
                       config.locate("model.intermediate_size"));
  }
  if (const int64_t tokens = find_indivisible_tokens(config.training.seq_len, plan, sequence); tokens > 0) {
    return fmt::format("{} do not divide the {} of a sequence that a rank holds, by {}",
                       counted(plan.columns, "column"), counted(tokens, "token"), config.locate("training.seq_len"));
  }
  if (!batch_divides(config, plan, data)) {
    return fmt::format("{} of the batch, with {} of data, do not divide {}", counted(shares_of(plan, data), "share"),
                       counted(data, "rank"), config.locate("training.global_batch_size"));
  }
  return "";
}

namespace {

constexpr const char* kMeshKey = "parallelism.tensor_parallel_mesh";
constexpr const char* kTensorDegreeKey = "parallelism.tensor_parallel_degree";

std::string number(int64_t value) { return fmt::format("{}", value); }

// Suggests another degree for the kind "1d". If data_parallel_degree is -1, it is the nearest legal degree that divides
// all ranks. Otherwise it is the largest legal divisor of the file's degree.
Remedy other_degree(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data) {
  if (config.parallelism.data_parallel_degree == -1) {
    const auto other = nearest_tensor_plan(config, sequence, plan.ranks() * data, -1);
    if (other) return {{kTensorDegreeKey, number(other->columns)}};
  }
  for (int fewer = plan.columns - 1; fewer > 1; --fewer) {
    TensorPlan smaller = plan;
    smaller.columns = fewer;
    if (plan.columns % fewer == 0 && tensor_misfit(config, smaller, sequence, data * plan.columns / fewer).empty())
      return {{kTensorDegreeKey, number(fewer)}};
  }
  return {{kTensorDegreeKey, "1"}};
}

// Suggests another sequence length, or a residual stream that is not sharded by tokens.
std::vector<Remedy> uncut_ways(const Config& config, const TensorPlan& plan, const SequencePlan& sequence) {
  std::vector<Remedy> ways;
  if (const int64_t seq_len = nearest_seq_len(config, plan, sequence); seq_len > 0)
    ways.push_back({{"training.seq_len", number(seq_len)}});
  ways.push_back({{"parallelism.tensor_parallel_sequence", "false"}});
  return ways;
}

std::vector<Remedy> tensor_ways(const Config& config, const TensorPlan& plan, const SequencePlan& sequence,
                                int64_t data) {
  const bool one_dimension = config.parallelism.tensor_parallel_kind == "1d";
  const int64_t num_indivisible_tokens = find_indivisible_tokens(config.training.seq_len, plan, sequence);
  std::vector<Remedy> ways;
  if (one_dimension && heads_divide(config, plan) && num_indivisible_tokens > 0) {
    ways = uncut_ways(config, plan, sequence);
  } else if (one_dimension) {
    ways.push_back(other_degree(config, plan, sequence, data));
  } else if (const auto nearest = nearest_tensor_plan(config, sequence, plan.ranks(), data)) {
    ways.push_back({{kMeshKey, mesh_text(*nearest)}});
  }
  // Another batch helps only if nothing else is illegal.
  const bool of_batch = heads_divide(config, plan) && heads_suffice(config, plan, sequence.ulysses) &&
                        widths_suffice(config, plan) && num_indivisible_tokens == 0;
  if (of_batch) ways.push_back({{"training.global_batch_size", number(nearest_batch_size(config, plan, data))}});
  if (ways.empty()) ways.push_back({{kMeshKey, mesh_text({})}, {"parallelism.tensor_parallel_kind", "\"1d\""}});
  return ways;
}

}  // namespace

int64_t nearest_batch_size(const Config& config, const TensorPlan& plan, int64_t data) {
  const int64_t shares = shares_of(plan, data);
  return (config.training.global_batch_size + shares - 1) / shares * shares;
}

void check_tensor_parallel(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data) {
  const std::string misfit = tensor_misfit(config, plan, sequence, data);
  if (misfit.empty()) return;
  const char* key = config.parallelism.tensor_parallel_kind == "1d" ? kTensorDegreeKey : kMeshKey;
  throw Refusal(key, fmt::format("{}: {}", config.locate(key), misfit), tensor_ways(config, plan, sequence, data));
}

SequencePlan cut_before_ranks(const Config& config) {
  const auto& p = config.parallelism;
  const auto ranks = [&](int64_t degree) {
    return static_cast<int>(std::clamp<int64_t>(degree, 1, config.run.ranks));
  };
  const int ring = ranks(p.context_parallel_ring);
  return {.ulysses = ranks(p.context_parallel_ulysses),
          .ring = ring,
          .placement = ring == 1 ? SequencePlacement::contiguous : sequence_placement_of(p.context_parallel_placement)};
}

std::string mesh_text(const TensorPlan& plan) {
  return fmt::format("[{}, {}, {}]", plan.rows, plan.columns, plan.depth);
}

std::optional<TensorPlan> nearest_tensor_plan(const Config& config, const SequencePlan& sequence, int64_t ranks,
                                              int64_t data) {
  std::optional<TensorPlan> nearest;
  for (int64_t taken = ranks; taken >= 1; --taken) {
    if (ranks % taken != 0) continue;
    for (const TensorPlan& plan : tensor_arrangements(static_cast<int>(taken))) {
      if (nearest && distance(config, plan) >= distance(config, *nearest)) continue;
      const int64_t beside = data == -1 ? ranks / taken : data;
      if (of_kind(config, plan) && tensor_misfit(config, plan, sequence, beside).empty()) nearest = plan;
    }
    if (data != -1) break;
  }
  return nearest;
}

}  // namespace orthant
