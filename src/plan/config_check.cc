// The checks that concern several keys, and the refusal of what this version does not run.
#include <cmath>
#include <filesystem>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/sequence/placement_plan.h"
#include "parallel/tensor/plan.h"
#include "plan/config_table.h"

namespace orthant {
namespace {

constexpr std::string_view kDegrees[] = {
    "parallelism.data_parallel_degree",  "parallelism.tensor_parallel_degree",   "parallelism.context_parallel_ulysses",
    "parallelism.context_parallel_ring", "parallelism.pipeline_parallel_degree", "parallelism.expert_parallel_degree",
};

// Keys that say how the ranks of one degree work together, and so say nothing while there is only one.
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
};

// "model.head_dim = 3 (run.toml:3) <why>".
[[noreturn]] void refuse(const Config& config, std::string_view key, std::string_view why) {
  throw ConfigError(fmt::format("{} {}", config.locate(key), why));
}

// "parallelism.zero_stage = 1 (run.toml:3): <why>; set it to 0".
void require(const Config& config, std::string_view key, bool holds, std::string_view why, std::string_view legal) {
  if (!holds) throw ConfigError(fmt::format("{}: {}; set it to {}", config.locate(key), why, legal));
}

std::string divisors(int64_t number) {
  std::vector<std::string> words;
  for (int64_t i = 1; i <= std::min<int64_t>(number, 4096); ++i) {
    if (number % i == 0) words.push_back(fmt::format("{}", i));
  }
  return join_or(words);
}

void check_batch(const Config& config) {
  const auto& training = config.training;
  if (training.local_batch_size > training.global_batch_size) {
    refuse(config, "training.local_batch_size",
           fmt::format("is more than {}; set it to {} or less", config.locate("training.global_batch_size"),
                       training.global_batch_size));
  }
  const double tokens = static_cast<double>(training.global_batch_size) * static_cast<double>(training.seq_len);
  if (config.model.objective == "masked" && config.model.masked_share * tokens < 1) {
    refuse(config, "model.masked_share",
           fmt::format("masks less than one of the {:.0f} tokens of a step; set it to {:.1e} or more, or raise {}",
                       tokens, std::min(1.0, 1.1 / tokens), config.locate("training.global_batch_size")));
  }
  if (config.lr_scheduler.warmup_steps > training.steps) {
    refuse(config, "lr_scheduler.warmup_steps",
           fmt::format("is more than {}; set it to {} or less", config.locate("training.steps"), training.steps));
  }
  if (training.seq_len > config.model.max_position_embeddings) {
    refuse(config, "training.seq_len",
           fmt::format("is more than {}; shorten the one to {} or raise the other to {}",
                       config.locate("model.max_position_embeddings"), config.model.max_position_embeddings,
                       training.seq_len));
  }
}

void check_data(const Config& config) {
  if (config.job.dump_folder.empty()) refuse(config, "job.dump_folder", "is empty; name a folder, such as \"runs/a\"");
  if (config.data.path.empty()) refuse(config, "data.path", "names no file; name text files, globs or a PREFIX");
  for (const std::string& path : config.data.path) {
    if (path.empty()) refuse(config, "data.path", "holds an empty name; name text files, globs or a PREFIX");
  }
  const HeldOut& held_out = config.data.validation;
  if (config.validation.freq > 0 && held_out.files.empty() && held_out.share == 0) {
    refuse(config, "validation.freq",
           fmt::format("needs held-out documents, but {}; set validation.freq to 0, or hold out a share such as 0.05",
                       config.locate("data.validation")));
  }
  if (!config.training.seed_weights && config.model.from.empty()) {
    refuse(config, "training.seed_weights", "needs a directory with weights; set model.from, or set it to true");
  }
}

void check_heads(const Config& config) {
  const auto& model = config.model;
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    refuse(config, "model.num_key_value_heads",
           fmt::format("does not divide {}; try {}", config.locate("model.num_attention_heads"),
                       divisors(model.num_attention_heads)));
  }
  if (model.head_dim == 0 && model.hidden_size % model.num_attention_heads != 0) {
    refuse(config, "model.num_attention_heads",
           fmt::format("does not divide {}; try {}, or set model.head_dim", config.locate("model.hidden_size"),
                       divisors(model.hidden_size)));
  }
  if (model.head_dim % 2 != 0) {
    refuse(
        config, "model.head_dim",
        fmt::format("is odd, and rotary positions turn pairs; try {} or {}", model.head_dim - 1, model.head_dim + 1));
  }
  if (model.head_dim == 0 && model.hidden_size / model.num_attention_heads % 2 != 0) {
    refuse(config, "model.hidden_size",
           fmt::format("gives {} heads of odd width {}, and rotary positions turn pairs; try {}",
                       model.num_attention_heads, model.hidden_size / model.num_attention_heads,
                       (model.hidden_size / model.num_attention_heads + 1) * model.num_attention_heads));
  }
  if (model.rope_scaling_type == "llama3" &&
      model.rope_scaling_high_freq_factor <= model.rope_scaling_low_freq_factor) {
    refuse(config, "model.rope_scaling_high_freq_factor",
           fmt::format("must be above {}", config.locate("model.rope_scaling_low_freq_factor")));
  }
}

void check_device(const Config& config, const Abilities& abilities) {
  const std::string& transport = config.run.transport;
  require(config, "run.device", config.run.device != "cuda" || abilities.cuda, "this build of Orthant has no CUDA",
          "\"cpu\"");
  require(config, "run.transport", transport != "ucx" || abilities.no_ucx.empty(), abilities.no_ucx,
          "\"auto\" or \"gloo\"");
  require(config, "run.transport", transport != "nccl" || abilities.nccl, "this build of Orthant has no NCCL",
          "\"auto\" or \"gloo\"");
  require(config, "run.transport", transport != "nccl" || config.run.device == "cuda",
          "NCCL needs run.device = \"cuda\"", "\"auto\" or \"gloo\"");
  require(config, "run.device", config.run.device == "cpu", "this version of Orthant trains on the CPU only",
          "\"cpu\"");
}

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

// A setting that would change nothing is a mistake about what runs.
void require_default(const Config& config, std::string_view key, const std::string& why) {
  const std::string legal = value_text(*find_key(key), Config{});
  require(config, key, value_text(*find_key(key), config) == legal, why, legal);
}

// size: the degree on these ranks, or -1 where it is not known yet.
void check_degree_settings(const Config& config, std::string_view degree_key, int64_t size) {
  if (size != 1) return;
  const char* how = degree(config, degree_key) == 1 ? "while that is 1" : "where the rest is one rank";
  for (const DegreeSetting& setting : kDegreeSettings) {
    if (setting.degree != degree_key) continue;
    require_default(config, setting.key,
                    fmt::format("it belongs to {} and changes nothing {}", config.locate(degree_key), how));
  }
}

void check_idle_settings(const Config& config) {
  const auto unless = [&](bool used, std::string_view key, std::string_view because) {
    if (!used) require_default(config, key, fmt::format("it changes nothing with {}", config.locate(because)));
  };
  unless(config.model.objective == "masked", "model.masked_share", "model.objective");
  unless(config.data.mask_documents, "data.long_documents", "data.mask_documents");
  for (const std::string_view key : kDegrees) check_degree_settings(config, key, degree(config, key));
}

void check_linformer(const Config& config) {
  const auto& model = config.model;
  if (model.linformer_length == 0) return;
  const char* mixed = "Linformer's projections mix all tokens of a sequence";
  if (model.objective != "masked") {
    refuse(
        config, "model.linformer_length",
        fmt::format("needs a model that sees to both sides, but {}: its projections mix later tokens into every key; "
                    "set model.objective to \"masked\", or model.linformer_length to 0",
                    config.locate("model.objective")));
  }
  if (model.linformer_length > config.training.seq_len) {
    refuse(config, "model.linformer_length",
           fmt::format("is more than {}: summaries would outnumber the tokens; set it to {} or less",
                       config.locate("training.seq_len"), config.training.seq_len));
  }
  require(config, "model.sliding_window", model.sliding_window == 0, mixed, "0");
  require(config, "data.mask_documents", !config.data.mask_documents, mixed, "false");
}

void refuse_unbuilt(const Config& config) {
  const auto& parallelism = config.parallelism;
  require(config, "model.architecture", config.model.architecture == "llama",
          "this version of Orthant trains LLaMA models only", "\"llama\"");
  require(config, "parallelism.zero_stage", parallelism.zero_stage == 0,
          "this version of Orthant keeps gradients and optimizer state whole on every rank", "0");
  constexpr std::string_view kNoPipeline = "this version of Orthant runs data, sequence and tensor parallelism only";
  for (const std::string_view key : kDegrees) {
    const bool unbuilt = key.find("pipeline") != key.npos || key.find("expert") != key.npos;
    if (unbuilt) require(config, key, degree(config, key) == 1, kNoPipeline, "1");
  }
  require(config, "parallelism.vocabulary_parallel", parallelism.vocabulary_parallel == "none", kNoPipeline,
          "\"none\"");
}

// Each kind has keys of its own.
void check_tensor_kind(const Config& config) {
  const auto& p = config.parallelism;
  const std::string kind = config.locate("parallelism.tensor_parallel_kind");
  if (p.tensor_parallel_kind == "1d" || p.tensor_parallel_kind == "auto") {
    const std::string why = fmt::format("it belongs to parallelism.tensor_parallel_kind \"2d\" and \"2.5d\", but {}", kind);
    require_default(config, "parallelism.tensor_parallel_mesh", why);
    require_default(config, "parallelism.tensor_parallel_product", why);
  } else {
    require_default(config, "parallelism.tensor_parallel_degree",
                    fmt::format("with {}, parallelism.tensor_parallel_mesh says how many ranks", kind));
  }
  const auto [rows, columns, depth] = p.tensor_parallel_mesh;
  require(config, "parallelism.tensor_parallel_mesh", p.tensor_parallel_kind != "2d" || depth == 1,
          "a mesh of two dimensions has depth 1", fmt::format("[{}, {}, 1]", rows, columns));
  if (p.tensor_parallel_kind != "1d") {
    require_default(config, "parallelism.tensor_parallel_sequence",
                    fmt::format("it belongs to the kind \"1d\", but {}", kind));
  }
}

// The windows of a ring that are nearest to `asked`, below and above; "0" where there are none.
std::string nearest_windows(int64_t ring, int64_t asked) {
  std::vector<std::string> words;
  for (int64_t i = 2; i < ring; ++i) {
    if (ring % i != 0) continue;
    if (i < asked) words = {fmt::format("{}", i)};
    if (i > asked) {
      words.push_back(fmt::format("{}", i));
      break;
    }
  }
  return words.empty() ? "0" : join_or(words);
}

}  // namespace

void check_model_from(const Config& config) {
  const std::filesystem::path from = config.model.from;
  if (from.empty()) return;
  std::error_code ignored;
  if (!std::filesystem::is_directory(from, ignored)) {
    refuse(config, "model.from", "is not a directory; name one that holds a config.json");
  }
  if (!std::filesystem::exists(from / "config.json", ignored)) {
    refuse(config, "model.from", "holds no config.json; name a Hugging Face directory or a checkpoint");
  }
}

void check_context_parallel(const Config& config, int64_t ulysses, int64_t ring) {
  const auto& p = config.parallelism;
  check_degree_settings(config, "parallelism.context_parallel_ring", ring);
  if (ulysses > config.model.num_attention_heads) {
    refuse(config, "parallelism.context_parallel_ulysses",
           fmt::format(
               "leaves ranks without a head: {}; set it to {} or less, and raise parallelism.context_parallel_ring",
               config.locate("model.num_attention_heads"), config.model.num_attention_heads));
  }
  const bool linformer = p.context_parallel_attention == "linformer";
  if (linformer && config.model.linformer_length == 0) {
    refuse(config, "parallelism.context_parallel_attention",
           fmt::format("adds up summaries, and {}; set that to their number, or choose \"ring_attention\"",
                       config.locate("model.linformer_length")));
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
           fmt::format("is less than the {} pieces of a sequence that {} make; lower one of these", pieces, degrees));
  }
  if (pieces > config.training.seq_len) {
    refuse(config, "training.seq_len",
           fmt::format("is cut into {} pieces, for {}; make it at least {}", pieces, degrees, pieces));
  }
  const bool self_attention = p.context_parallel_attention == "ring_self_attention";
  if (p.context_parallel_window > 0 && ring % p.context_parallel_window != 0) {
    refuse(config, "parallelism.context_parallel_window",
           fmt::format("does not divide {}{}; try {}", config.locate("parallelism.context_parallel_ring"),
                       p.context_parallel_ring == -1 ? fmt::format(", which leaves a ring of {}", ring) : "",
                       nearest_windows(ring, p.context_parallel_window)));
  }
  if (p.context_parallel_window == 1 || p.context_parallel_window == ring) {
    refuse(config, "parallelism.context_parallel_window",
           fmt::format("makes one ring of {}, as 0 does; set it to 0", counted(ring, "rank")));
  }
  require(config, "parallelism.context_parallel_window",
          p.context_parallel_window == 0 || p.context_parallel_attention == "ring_attention",
          fmt::format("{} has one ring", p.context_parallel_attention), "0");
  require(config, "parallelism.context_parallel_reduction",
          p.context_parallel_reduction == "reduce_scatter" || self_attention, "it belongs to ring_self_attention",
          "\"reduce_scatter\"");
}

void check_tensor_parallel(const Config& config, const TensorPlan& plan, int64_t data, int64_t held_tokens) {
  const auto& p = config.parallelism;
  const bool one_dimension = p.tensor_parallel_kind == "1d";
  const std::string asked = config.locate(one_dimension ? "parallelism.tensor_parallel_degree"
                                                        : "parallelism.tensor_parallel_mesh");
  const int64_t columns = plan.columns;
  if (config.model.num_key_value_heads % columns != 0) {
    throw ConfigError(fmt::format("{} cuts heads over {}, which does not divide {}; try {}", asked,
                                  counted(columns, "column"), config.locate("model.num_key_value_heads"),
                                  divisors(config.model.num_key_value_heads)));
  }
  if (plan.stream == StreamCut::tokens && held_tokens % columns != 0) {
    throw ConfigError(fmt::format("{} does not divide the {} of a sequence that a rank holds, by {}; make that a "
                                  "multiple, or set parallelism.tensor_parallel_sequence to false",
                                  asked, counted(held_tokens, "token"), config.locate("training.seq_len")));
  }
  const int64_t shares = data * plan.rows * plan.depth, batch = config.training.global_batch_size;
  if (plan.rows * plan.depth > 1 && batch % shares != 0) {
    throw ConfigError(fmt::format("{} cuts the batch into {} with {} of data, which does not divide {}; make that {}",
                                  asked, counted(shares, "share"), counted(data, "rank"),
                                  config.locate("training.global_batch_size"), (batch + shares - 1) / shares * shares));
  }
}

void check_config(const Config& config, const Abilities& abilities) {
  check_model_from(config);
  check_device(config, abilities);
  check_degrees(config);
  refuse_unbuilt(config);
  check_idle_settings(config);
  check_tensor_kind(config);
  check_data(config);
  check_heads(config);
  check_linformer(config);
  check_batch(config);
  // Early, where the degrees fit the local ranks; else with the mesh, which refuses what fits no ranks.
  const int64_t ulysses = config.parallelism.context_parallel_ulysses, ring = config.parallelism.context_parallel_ring;
  const int64_t ranks = config.run.ranks;
  const bool known = ulysses != -1 && ring != -1 && ulysses <= ranks && ring <= ranks;
  if (known && ranks % (ulysses * ring) == 0) check_context_parallel(config, ulysses, ring);
}

}  // namespace orthant
