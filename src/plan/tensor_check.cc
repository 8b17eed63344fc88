#include "plan/tensor_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/sequence/placement_plan.h"
#include "parallel/tensor/words_plan.h"
#include "plan/config_refusal.h"

namespace orthant {
namespace {

int64_t shares_of(const TensorPlan& plan, int64_t data) { return data * plan.rows * plan.depth; }

// Rows and depth must have equal parts of the batch: they work on a microbatch together.
bool batch_divides(const Config& config, const TensorPlan& plan, int64_t data) {
  return plan.rows * plan.depth == 1 || config.training.global_batch_size % shares_of(plan, data) == 0;
}

bool heads_divide(const Config& config, const TensorPlan& plan) {
  return config.model.num_key_value_heads % plan.columns == 0;
}

// Ulysses deals a column's heads out to its ranks.
bool heads_suffice(const Config& config, const TensorPlan& plan, int64_t ulysses) {
  return config.model.num_attention_heads / plan.columns >= ulysses;
}

// Rows and columns each cut every width, the stream's and the MLP's.
bool widths_suffice(const Config& config, const TensorPlan& plan) {
  return std::min(config.model.hidden_size, config.model.intermediate_size) >= std::max(plan.rows, plan.columns);
}

// The tokens that some rank holds of a sequence and that columns cannot cut into equal parts; 0 if all can be.
int64_t uncut_tokens(const Config& config, const TensorPlan& plan, const SequencePlan& sequence) {
  if (plan.stream != StreamCut::tokens) return 0;
  for (int ring = 0; ring < sequence.ring; ++ring) {
    for (int ulysses = 0; ulysses < sequence.ulysses; ++ulysses) {
      const int64_t tokens =
          num_held_places(sequence.placement, config.training.seq_len, sequence.ulysses, ulysses, sequence.ring, ring);
      if (tokens % plan.columns != 0) return tokens;
    }
  }
  return 0;
}

// What the file's kind, with its other keys, can mean.
bool of_kind(const Config& config, const TensorPlan& plan) {
  const auto& p = config.parallelism;
  if (p.tensor_parallel_kind == "1d") {
    if (plan.ranks() == 1 && !p.tensor_parallel_sequence) return false;  // it says nothing of one rank
    return plan.stream == (p.tensor_parallel_sequence ? StreamCut::tokens : StreamCut::none);
  }
  if (p.tensor_parallel_product == "summa" && plan.rows * plan.columns == 1) return false;
  return plan.stream == StreamCut::width && (plan.depth == 1 || p.tensor_parallel_kind == "2.5d");
}

// By the ratios to what is asked for.
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

}  // namespace

void check_tensor_kind(const Config& config) {
  const auto& p = config.parallelism;
  const std::string kind = config.locate("parallelism.tensor_parallel_kind");
  if (p.tensor_parallel_kind == "1d" || p.tensor_parallel_kind == "auto") {
    const std::string why =
        fmt::format("it belongs to parallelism.tensor_parallel_kind \"2d\" and \"2.5d\", but {}", kind);
    require_default(config, "parallelism.tensor_parallel_mesh", why);
    require_default(config, "parallelism.tensor_parallel_product", why);
  } else {
    require_default(config, "parallelism.tensor_parallel_degree",
                    fmt::format("with {}, parallelism.tensor_parallel_mesh says how many ranks", kind));
  }
  const auto [rows, columns, depth] = p.tensor_parallel_mesh;
  require(config, "parallelism.tensor_parallel_mesh", p.tensor_parallel_kind != "2d" || depth == 1,
          "a mesh of two dimensions has depth 1", fmt::format("[{}, {}, 1]", rows, columns));
  if (rows * columns == 1 && (p.tensor_parallel_kind == "2d" || p.tensor_parallel_kind == "2.5d")) {
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
  if (const int64_t tokens = uncut_tokens(config, plan, sequence); tokens > 0) {
    return fmt::format("{} do not divide the {} of a sequence that a rank holds, by {}",
                       counted(plan.columns, "column"), counted(tokens, "token"), config.locate("training.seq_len"));
  }
  if (!batch_divides(config, plan, data)) {
    return fmt::format("{} of the batch, with {} of data, do not divide {}", counted(shares_of(plan, data), "share"),
                       counted(data, "rank"), config.locate("training.global_batch_size"));
  }
  return "";
}

void check_tensor_parallel(const Config& config, const TensorPlan& plan, const SequencePlan& sequence, int64_t data) {
  const std::string misfit = tensor_misfit(config, plan, sequence, data);
  if (misfit.empty()) return;
  std::vector<std::string> ways;
  const bool one_dimension = config.parallelism.tensor_parallel_kind == "1d";
  if (one_dimension && !heads_divide(config, plan)) {
    ways.push_back(fmt::format("try {}", divisors(config.model.num_key_value_heads)));
  } else if (one_dimension && uncut_tokens(config, plan, sequence) > 0) {
    ways.push_back("make that a multiple, or set parallelism.tensor_parallel_sequence to false");
  } else if (one_dimension) {
    ways.push_back("lower one of the degrees");
  } else if (const auto nearest = nearest_tensor_plan(config, sequence, plan.ranks(), data)) {
    ways.push_back(fmt::format("the nearest mesh that works is {}", mesh_text(*nearest)));
  } else if (!heads_divide(config, plan)) {
    ways.push_back(fmt::format("no mesh of {} works; columns may be {}", counted(plan.ranks(), "rank"),
                               divisors(config.model.num_key_value_heads)));
  }
  // Where the batch is all that does not fit.
  const bool of_batch = heads_divide(config, plan) && heads_suffice(config, plan, sequence.ulysses) &&
                        widths_suffice(config, plan) && uncut_tokens(config, plan, sequence) == 0;
  if (ways.empty() && !of_batch) ways.push_back(fmt::format("no mesh of {} works", counted(plan.ranks(), "rank")));
  if (of_batch) {
    const int64_t shares = shares_of(plan, data), batch = config.training.global_batch_size;
    ways.push_back(
        fmt::format("training.global_batch_size = {} works with this one", (batch + shares - 1) / shares * shares));
  }
  throw ConfigError(fmt::format(
      "{}: {}; {}",
      config.locate(one_dimension ? "parallelism.tensor_parallel_degree" : "parallelism.tensor_parallel_mesh"), misfit,
      join(ways, "; ")));
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
