// Turns the keys of a run file into the model, the mesh and its sharding. Most of the code suggests legal degrees if
// the given ones do not fit the ranks.
#include "config/from_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "config/parallelism_check.h"
#include "config/refusal.h"
#include "config/table.h"
#include "config/tensor_check.h"

namespace orthant {

Architecture make_architecture(const Config& config, int64_t vocab_size) {
  Architecture a = config.model;
  if (a.head_dim == 0) a.head_dim = a.hidden_size / a.num_attention_heads;
  const int64_t least_vocab_size = a.causal() ? vocab_size : mask_token(vocab_size) + 1;
  if (a.vocab_size == 0) a.vocab_size = least_vocab_size;
  if (a.linformer_length > 0) a.linformer_tokens = config.training.seq_len;
  if (a.rope_scaling_type == "none") {  // then the factors mean nothing, and config.json does not have them
    const Architecture defaults;
    a.rope_scaling_factor = defaults.rope_scaling_factor;
    a.rope_scaling_low_freq_factor = defaults.rope_scaling_low_freq_factor;
    a.rope_scaling_high_freq_factor = defaults.rope_scaling_high_freq_factor;
    a.rope_scaling_original_max_position_embeddings = defaults.rope_scaling_original_max_position_embeddings;
  }
  if (a.vocab_size < least_vocab_size) {
    throw ConfigError(fmt::format(
        "{} is smaller than the tokenizer's vocabulary of {}{}; set it to 0 or to at least {}",
        config.locate("model.vocab_size"), vocab_size, a.causal() ? "" : " and the mask token", least_vocab_size));
  }
  return a;
}

OutputLoss make_output_loss(const Config& config) {
  return {.softcap = config.model.final_logit_softcapping,
          .smoothing = config.training.label_smoothing,
          .z_weight = config.training.z_loss};
}

namespace {

constexpr const char* kTensorMeshKey = "parallelism.tensor_parallel_mesh";

struct Degree {
  std::string axis;
  const char* key;
  int64_t size;
};

// True if the run file gives a tensor mesh as one number of ranks, and not as three extents.
bool is_one_number(const Config& config) {
  const std::string& kind = config.parallelism.tensor_parallel_kind;
  return kind == "1d" || kind == "auto";
}

// Returns the degrees from the inner to the outer axis; axes with more communication are further inside. "tensor"
// stands for the three axes of the tensor mesh.
std::vector<Degree> degrees_of(const Config& config, int ranks) {
  const auto& p = config.parallelism;
  const auto [rows, columns, depth] = p.tensor_parallel_mesh;
  const bool countable = std::max({rows, columns, depth}) <= ranks;
  const Degree tensor = is_one_number(config)
                            ? Degree{"tensor", "parallelism.tensor_parallel_degree", p.tensor_parallel_degree}
                            : Degree{"tensor", kTensorMeshKey, countable ? rows * columns * depth : int64_t{ranks} + 1};
  return {tensor,
          {kUlysses, "parallelism.context_parallel_ulysses", p.context_parallel_ulysses},
          {kRing, "parallelism.context_parallel_ring", p.context_parallel_ring},
          {kData, "parallelism.data_parallel_degree", p.data_parallel_degree},
          {kPipeline, "parallelism.pipeline_parallel_degree", p.pipeline_parallel_degree}};
}

// Returns "take the mesh [2, 2, 1]" or "set parallelism.tensor_parallel_degree to 4".
std::string take(const Config& config, const TensorPlan& plan, const char* mesh) {
  return is_one_number(config) ? fmt::format("set parallelism.tensor_parallel_degree to {}", plan.columns)
                               : fmt::format("take {}{}", mesh, mesh_text(plan));
}

// Suggests changes if one degree is -1 and the product of the others does not divide the ranks. `tensor` is the number
// of ranks of the tensor mesh, and `others` the product of the remaining degrees.
std::string ways_to_fill(const Config& config, int ranks, int64_t tensor, int64_t others) {
  const auto multiple = [](int64_t of) { return fmt::format("make run.ranks a multiple of {}", of); };
  if (tensor == 1 || config.parallelism.tensor_parallel_kind == "auto") return multiple(tensor * others);
  const SequencePlan cut = cut_before_ranks(config);
  const int64_t data = config.parallelism.data_parallel_degree;
  std::vector<std::string> ways;
  // The present mesh, or another one with the same number of ranks.
  if (const auto same = nearest_tensor_plan(config, cut, tensor, std::max<int64_t>(data, 1))) {
    const bool asked = is_one_number(config) ||
                       std::array<int64_t, 3>{same->rows, same->columns, same->depth} ==
                           config.parallelism.tensor_parallel_mesh;
    ways.push_back(multiple(tensor * others) + (asked ? "" : " and " + take(config, *same, "the mesh ")));
  }
  if (ranks % others == 0) {
    if (const auto nearest = nearest_tensor_plan(config, cut, ranks / others, data)) {
      ways.push_back(take(config, *nearest, "the nearest mesh that works, "));
    }
  }
  for (int64_t fewer = tensor - 1; ways.empty() && fewer >= 1; --fewer) {
    if (const auto mesh = nearest_tensor_plan(config, cut, fewer, std::max<int64_t>(data, 1))) {
      ways.push_back(multiple(fewer * others) + " and " + take(config, *mesh, "the mesh "));
    }
  }
  return ways.empty() ? multiple(tensor * others) : join(ways, ", or ");
}

// Returns the product of the degrees, where -1 counts as 1; 0 if a run on that number of ranks is refused.
int64_t other_ranks(const Config& config) {
  const double most = find_key("run.ranks")->legal.most;
  double product = 1;
  for (const Degree& degree : degrees_of(config, static_cast<int>(most)))
    product *= static_cast<double>(std::max<int64_t>(degree.size, 1));
  if (product > most || config.parallelism.pipeline_parallel_degree > config.model.num_hidden_layers) return 0;
  const int ranks = static_cast<int>(product);
  try {
    check_mesh(config, ranks);
  } catch (const ConfigError&) {
    return 0;
  }
  return ranks;
}

// Returns ", or set run.ranks to 8"; empty if other_ranks() finds no legal number.
std::string or_other_ranks(const Config& config) {
  const int64_t ranks = other_ranks(config);
  return ranks > 0 ? fmt::format(", or set run.ranks to {}", ranks) : "";
}

// Suggests a value in place of a degree that exceeds the ranks.
std::string suggest_degree(const Degree& degree, int ranks, const std::vector<Degree>& degrees, const Config& config) {
  int64_t left = ranks;  // ranks that the other degrees leave; 0 if they do not divide the ranks
  double others = 1;
  bool too_many = false;  // another degree exceeds the ranks too; it is refused next
  for (const Degree& other : degrees) {
    if (&other == &degree || other.size <= 1) continue;
    too_many |= other.size > ranks;
    left = left % other.size == 0 ? left / other.size : 0;
    others *= static_cast<double>(other.size);
  }
  const bool is_mesh = degree.key == std::string_view(kTensorMeshKey);
  if (degree.axis == "tensor" && left > 0 && config.parallelism.tensor_parallel_kind != "auto") {
    const auto mesh =
        nearest_tensor_plan(config, cut_before_ranks(config), left, config.parallelism.data_parallel_degree);
    if (mesh && is_mesh) return fmt::format("set it to {}", mesh_text(*mesh));
    left = mesh ? mesh->columns : 1;
  }
  const std::string one =
      is_mesh ? fmt::format("set it to {} and parallelism.tensor_parallel_kind to \"1d\"", mesh_text({}))
              : fmt::format("set it to {}", std::max<int64_t>(left, 1));
  if (left > 0 || too_many || others > find_key("run.ranks")->legal.most) return one;
  return fmt::format("make run.ranks a multiple of {} and {}", static_cast<int64_t>(others), one);
}

// Refuses every degree above `ranks`. This comes before any product of degrees, which could overflow.
void refuse_more_than(int ranks, const std::vector<Degree>& degrees, const Config& config) {
  for (const Degree& degree : degrees) {
    if (degree.size <= ranks) continue;
    throw ConfigError(fmt::format("{} is more than the {}; {}{}", config.locate(degree.key), counted(ranks, "rank"),
                                  suggest_degree(degree, ranks, degrees, config), or_other_ranks(config)));
  }
}

}  // namespace

Mesh make_mesh(const Config& config, int ranks) {
  std::vector<Degree> degrees = degrees_of(config, ranks);
  refuse_more_than(ranks, degrees, config);
  int64_t fixed = 1;
  Degree* rest = nullptr;
  for (Degree& degree : degrees) {
    if (degree.size == -1)
      rest = &degree;
    else
      fixed *= degree.size;
  }
  if (rest != nullptr && ranks % fixed == 0) {
    rest->size = ranks / fixed;
  } else if (rest != nullptr) {
    std::vector<std::string> taken;
    for (const Degree& degree : degrees) {
      if (degree.size > 1) taken.push_back(config.locate(degree.key));
    }
    const int64_t tensor = std::max<int64_t>(degrees.front().size, 1);
    throw ConfigError(fmt::format("{} cannot take {} of {}; {}", join(taken, ", "), fixed, counted(ranks, "rank"),
                                  ways_to_fill(config, ranks, tensor, fixed / tensor)));
  } else if (fixed != ranks) {
    // The error names the data axis, because it should have the ranks that the other degrees leave.
    const auto is_data = [](const Degree& degree) { return degree.axis == kData; };
    const Degree& data = *std::find_if(degrees.begin(), degrees.end(), is_data);
    const int64_t others = fixed / data.size;
    const std::string problem =
        fmt::format("{} does not fit {}{}", config.locate(data.key), counted(ranks, "rank"),
                    others > 1 ? fmt::format(" with {} taken by the other degrees", others) : "");
    if (ranks % others == 0) {
      std::vector<Remedy> ways = {{{data.key, fmt::format("{}", ranks / others)}}, {{data.key, "-1"}}};
      const int64_t other = other_ranks(config);
      if (other > 0) ways.push_back({{"run.ranks", fmt::format("{}", other)}});
      throw Refusal(data.key, problem, ways);
    }
    throw ConfigError(fmt::format("{}; make run.ranks a multiple of {} and this -1{}", problem, others,
                                  or_other_ranks(config)));
  }
  std::vector<Axis> axes;
  for (const Degree& degree : degrees) {
    if (degree.axis != "tensor") {
      axes.push_back({degree.axis, static_cast<int>(degree.size)});
      continue;
    }
    const auto [rows, columns, depth] = config.parallelism.tensor_parallel_mesh;
    axes.push_back({kColumn, static_cast<int>(is_one_number(config) ? degree.size : columns)});
    axes.push_back({kRow, static_cast<int>(rows)});
    axes.push_back({kDepth, static_cast<int>(depth)});
  }
  return Mesh(axes);
}

SequencePlan make_sequence_plan(const Config& config, const Mesh& mesh) {
  const auto& p = config.parallelism;
  const int ulysses = mesh.axis_size(kUlysses), ring = mesh.axis_size(kRing);
  check_context_parallel(config, ulysses, ring);
  const int64_t summaries = config.model.linformer_length;  // needed even if there is no ring that sums them
  return {.ulysses = ulysses,
          .ring = ring,
          .window = static_cast<int>(p.context_parallel_window),
          .placement = ring == 1 ? SequencePlacement::contiguous : sequence_placement_of(p.context_parallel_placement),
          .method = summaries > 0 ? SequenceMethod::linformer : sequence_method_of(p.context_parallel_attention),
          .all_reduce = p.context_parallel_reduction == "all_reduce",
          .summary_length = summaries};
}

TensorPlan make_tensor_plan(const Config& config, const Mesh& mesh, const SequencePlan& sequence) {
  const auto& p = config.parallelism;
  TensorPlan plan{.rows = mesh.axis_size(kRow), .columns = mesh.axis_size(kColumn), .depth = mesh.axis_size(kDepth)};
  if (p.tensor_parallel_kind == "1d") {
    plan.stream = p.tensor_parallel_sequence ? StreamSharding::tokens : StreamSharding::none;
  } else if (p.tensor_parallel_product == "summa") {
    plan.form = ProductForm::summa;
  }
  if (plan.ranks() == 1) return {};
  check_tensor_parallel(config, plan, sequence, mesh.axis_size(kData));
  return plan;
}

void check_mesh(const Config& config, int ranks) {
  const Mesh mesh = make_mesh(config, ranks);
  const SequencePlan sequence = make_sequence_plan(config, mesh);
  if (config.parallelism.tensor_parallel_kind != "auto") make_tensor_plan(config, mesh, sequence);
}

int dtype_bytes(const std::string& dtype) { return dtype == "bfloat16" ? 2 : dtype == "float64" ? 8 : 4; }

int master_bytes(const Config& config) { return config.training.dtype == "float64" ? 8 : 4; }

SequenceAttention attention_of(const Config& config, const Architecture& a, int64_t sequences) {
  return {.sequences = sequences,
          .seq_len = config.training.seq_len,
          .heads = a.num_attention_heads,
          .key_heads = a.num_key_value_heads,
          .head_dim = a.head_dim,
          .element_bytes = dtype_bytes(config.training.dtype)};
}

}  // namespace orthant
