// Turns the keys of a run file into the model, the mesh and its sharding.
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
  // Factors that the type does not use have no meaning, and config.json does not have them.
  const Architecture defaults;
  if (!a.rotary()) a.rope_scaling_type = "none", a.rope_theta = defaults.rope_theta;
  const std::string& scaling = a.rope_scaling_type;
  if (scaling == "none") a.rope_scaling_factor = defaults.rope_scaling_factor;
  if (scaling != "llama3") {
    a.rope_scaling_low_freq_factor = defaults.rope_scaling_low_freq_factor;
    a.rope_scaling_high_freq_factor = defaults.rope_scaling_high_freq_factor;
  }
  if (scaling != "yarn") {
    a.rope_scaling_beta_fast = defaults.rope_scaling_beta_fast;
    a.rope_scaling_beta_slow = defaults.rope_scaling_beta_slow;
    a.rope_scaling_attention_factor = defaults.rope_scaling_attention_factor;
  }
  if (scaling != "llama3" && scaling != "yarn") {
    a.rope_scaling_original_max_position_embeddings = defaults.rope_scaling_original_max_position_embeddings;
  }
  if (scaling == "yarn") a.rope_scaling_attention_factor = rotary_factor(a);
  if (a.vocab_size < least_vocab_size && !config.model.from.empty()) {
    throw ConfigError(
        fmt::format("{}: the {} entries of {}{} must be at most the {} of the model in {}; leave out "
                    "data.tokenizer to use the model's own",
                    config.locate("model.vocab_size"), least_vocab_size, config.locate("data.tokenizer"),
                    a.causal() ? "" : " with the mask token", a.vocab_size, config.model.from));
  }
  if (a.vocab_size < least_vocab_size) {
    refuse(config, "model.vocab_size",
           fmt::format("must be 0, or at least the {} entries of the tokenizer{}", least_vocab_size,
                       a.causal() ? "" : " with the mask token"),
           {}, {0, static_cast<double>(least_vocab_size)});
  }
  return a;
}

OutputLoss make_output_loss(const Config& config) {
  return {.softcap = config.model.final_logit_softcapping,
          .smoothing = config.training.label_smoothing,
          .z_weight = config.training.z_loss};
}

Recomputation make_recomputation(const Config& config) {
  const auto& recompute = config.activation_checkpoint;
  if (recompute.mode == "none") return {};
  if (recompute.mode == "full") return {.names = {kWholeBlock}, .layers = recompute.layers};
  return {.names = recompute.operations, .layers = recompute.layers};
}

namespace {

constexpr const char* kTensorMeshKey = "parallelism.tensor_parallel_mesh";
constexpr const char* kDataKey = "parallelism.data_parallel_degree";
constexpr const char* kShardKey = "parallelism.data_parallel_shard_degree";
constexpr const char* kReplicateKey = "parallelism.data_parallel_replicate_degree";

struct Degree {
  std::string axis;
  const char* key;
  int64_t size;
};

// Returns the degrees from the inner to the outer axis; axes with more communication are further inside, unless the
// user wants the data axis to be the outer one. "tensor" stands for the three axes of the tensor mesh.
std::vector<Degree> degrees_of(const Config& config, int ranks) {
  const auto& p = config.parallelism;
  const auto [rows, columns, depth] = p.tensor_parallel_mesh;
  const bool countable = std::max({rows, columns, depth}) <= ranks;
  const Degree tensor = is_one_number(config)
                            ? Degree{"tensor", "parallelism.tensor_parallel_degree", p.tensor_parallel_degree}
                            : Degree{"tensor", kTensorMeshKey, countable ? rows * columns * depth : int64_t{ranks} + 1};
  const Degree data = {kData, kDataKey, p.data_parallel_degree};
  const Degree pipeline = {kPipeline, "parallelism.pipeline_parallel_degree", p.pipeline_parallel_degree};
  const bool data_is_outer = p.outer_axis == "data";
  return {tensor,
          {kUlysses, "parallelism.context_parallel_ulysses", p.context_parallel_ulysses},
          {kRing, "parallelism.context_parallel_ring", p.context_parallel_ring},
          data_is_outer ? pipeline : data,
          data_is_outer ? data : pipeline};
}

// Refuses the degrees because their product does not fit the ranks.
[[noreturn]] void refuse_product(const Config& config, const std::vector<Degree>& degrees, double product, int ranks,
                                 const char* law) {
  std::vector<std::string> taken, keys;
  for (const Degree& degree : degrees) {
    if (degree.size <= 1) continue;
    taken.push_back(config.locate(degree.key));
    keys.emplace_back(degree.key);
  }
  if (taken.empty()) {
    taken.push_back(config.locate(kDataKey));
    keys.emplace_back(kDataKey);
  }
  keys.emplace_back("run.ranks");
  if (std::ranges::find(keys, kDataKey) == keys.end()) keys.emplace_back(kDataKey);
  const std::string what =
      taken.size() > 1 ? fmt::format("their product {:.0f}", product) : fmt::format("its {:.0f} ranks", product);
  throw Refusal(fmt::format("{}: {} must {} the {} of the run", join(taken, ", "), what, law, counted(ranks, "rank")),
                keys, {product});
}

// Returns the number of copies of the sharded states among the data ranks; 1 if no states are sharded. Throws Refusal
// if the degrees do not fit these ranks.
int64_t copies_of(const Config& config, int64_t data) {
  if (config.parallelism.zero_stage == 0) return 1;
  const int64_t shard = config.parallelism.data_parallel_shard_degree,
                replicate = config.parallelism.data_parallel_replicate_degree;
  const int64_t given = std::clamp<int64_t>(shard, 1, data + 1) * std::clamp<int64_t>(replicate, 1, data + 1);
  if (shard > 0 && replicate > 0 && given != data) {
    refuse(config, kShardKey,
           fmt::format("times {} must equal the number of data ranks, {}", config.locate(kReplicateKey), data),
           {kReplicateKey, kDataKey}, {static_cast<double>(data), static_cast<double>(given)});
  }
  if (data % given != 0) {
    const char* key = shard > 0 ? kShardKey : kReplicateKey;
    refuse(config, key, fmt::format("must divide the {}", counted(data, "data rank")), {kDataKey},
           {static_cast<double>(given)});
  }
  return replicate > 0 ? replicate : shard > 0 ? data / shard : 1;
}

}  // namespace

Axes batch_axes(const Mesh& mesh) {
  Axes axes = {kRow, kDepth, kData};
  if (mesh.has(kReplica)) axes.push_back(kReplica);
  return axes;
}

int data_ranks(const Mesh& mesh) { return mesh.axis_size(kData) * mesh.axis_size(kReplica); }

KeptElements kept_gradients(const Config& config) {
  if (config.optimizer.in_backward) return KeptElements::none;
  return config.parallelism.zero_stage >= 2 ? KeptElements::owned : KeptElements::all;
}

bool has_gradients_by_unit(const Config& config) { return kept_gradients(config) != KeptElements::all; }

bool uses_nccl(const Config& config) {
  return config.run.device == "cuda" && (config.run.transport == "auto" || config.run.transport == "nccl");
}

bool reports_late(const Config& config) {
  return config.run.device == "cuda" && config.optimizer.name != "muon" && !config.optimizer.in_backward &&
         !config.parallelism.pipeline_parallel_post_validation;
}

bool offloads(const Config& config) { return config.optimizer.offload || config.activation_checkpoint.offload; }

bool shards_vocabulary(const Config& config) {
  const std::string& how = config.parallelism.vocabulary_parallel;
  return how != "none" && how != "redistribution";
}

Mesh make_mesh(const Config& config, int ranks) {
  std::vector<Degree> degrees = degrees_of(config, ranks);
  double product = 1;  // of the degrees but -1; it may exceed 64 bits
  Degree* rest = nullptr;
  for (Degree& degree : degrees) {
    product *= std::max(1.0, static_cast<double>(degree.size));
    if (degree.size == -1) rest = &degree;
  }
  for (const Degree& degree : degrees) {
    if (degree.size <= ranks) continue;
    refuse(config, degree.key, fmt::format("must be at most the {} of the run", counted(ranks, "rank")), {"run.ranks"},
           {product});
  }
  if (rest == nullptr && product != ranks) refuse_product(config, degrees, product, ranks, "equal");
  if (product > ranks || ranks % static_cast<int>(product) != 0)
    refuse_product(config, degrees, product, ranks, "divide");
  if (rest != nullptr) rest->size = ranks / static_cast<int>(product);
  std::vector<Axis> axes;
  for (const Degree& degree : degrees) {
    if (degree.axis == kData) {
      const int64_t copies = copies_of(config, degree.size);
      axes.push_back({kData, static_cast<int>(degree.size / copies)});
      if (copies > 1) axes.push_back({kReplica, static_cast<int>(copies)});
      continue;
    }
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
  const int ulysses = mesh.axis_size(kUlysses), ring = mesh.axis_size(kRing);
  check_context_parallel(config, ulysses, ring);
  const ParallelismConfig p = without_idle_settings(config, mesh).parallelism;
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
  if (config.run.device == "cuda") plan.panel_bytes = kPanelBytesOnCuda;
  if (plan.ranks() == 1) return {};
  check_tensor_parallel(config, plan, sequence, data_ranks(mesh));
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
          .element_bytes = dtype_bytes(config.training.dtype),
          .causal = a.causal(),
          .capped = a.attn_logit_softcapping > 0,
          .on_gpu = config.run.device == "cuda"};
}

}  // namespace orthant
