// Checks the laws that involve several keys, and refuses features that this version does not run.
#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "base/text.h"
#include "config/from_config.h"
#include "config/parallelism_check.h"
#include "config/refusal.h"

namespace orthant {
namespace {

void check_batch(const Config& config) {
  const auto& training = config.training;
  if (training.local_batch_size > training.global_batch_size) {
    refuse(config, "training.local_batch_size",
           fmt::format("is more than {}", config.locate("training.global_batch_size")),
           {{{"training.local_batch_size", fmt::format("{}", training.global_batch_size)}}});
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
           fmt::format("is more than {}", config.locate("model.max_position_embeddings")),
           {{{"training.seq_len", fmt::format("{}", config.model.max_position_embeddings)}},
            {{"model.max_position_embeddings", fmt::format("{}", training.seq_len)}}});
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
           fmt::format("does not divide {}; try {}; {} is without groups", config.locate("model.num_attention_heads"),
                       divisors(model.num_attention_heads), model.num_attention_heads));
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

void check_device(const Config& config, const BuildFeatures& abilities) {
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

void check_idle_settings(const Config& config) {
  const auto unless = [&](bool used, std::string_view key, std::string_view because) {
    if (!used) require_default(config, key, fmt::format("it changes nothing with {}", config.locate(because)));
  };
  unless(config.model.objective == "masked", "model.masked_share", "model.objective");
  unless(config.data.mask_documents, "data.long_documents", "data.mask_documents");
  const auto read = optimizer_spec(config.optimizer).settings;
  for (const OptimizerSpec& other : optimizer_specs(config.optimizer)) {
    for (const std::string& setting : other.settings) {
      unless(std::ranges::count(read, setting) > 0, "optimizer." + setting, "optimizer.name");
    }
  }
}

void check_linformer(const Config& config) {
  const auto& model = config.model;
  if (model.linformer_length == 0) return;
  const char* mixed = "Linformer's projections mix all tokens of a sequence";
  if (model.objective != "masked") {
    refuse(
        config, "model.linformer_length",
        fmt::format("needs a model that sees to both sides, but {}: its projections mix later tokens into every key",
                    config.locate("model.objective")),
        {{{"model.objective", "\"masked\""}}, {{"model.linformer_length", "0"}}});
  }
  if (model.linformer_length > config.training.seq_len) {
    refuse(config, "model.linformer_length",
           fmt::format("is more than {}: summaries would outnumber the tokens", config.locate("training.seq_len")),
           {{{"model.linformer_length", fmt::format("{}", config.training.seq_len)}}});
  }
  require(config, "model.sliding_window", model.sliding_window == 0, mixed, "0");
  require(config, "data.mask_documents", !config.data.mask_documents, mixed, "false");
}

void check_biases(const Config& config) {
  const auto& model = config.model;
  constexpr std::string_view kMistral = "a model with a sliding window is saved as a Mistral, which has no biases";
  require(config, "model.attention_bias", !model.attention_bias || model.sliding_window == 0, kMistral, "false");
  require(config, "model.mlp_bias", !model.mlp_bias || model.sliding_window == 0, kMistral, "false");
}

void check_post_validation(const Config& config) {
  const std::string& cut = config.parallelism.vocabulary_parallel;
  require(config, "parallelism.pipeline_parallel_post_validation",
          !config.parallelism.pipeline_parallel_post_validation || cut == "none" || cut == "redistribution",
          fmt::format("with {} all ranks meet in every microbatch, and none ends before the others",
                      config.locate("parallelism.vocabulary_parallel")),
          "false");
}

void refuse_unbuilt(const Config& config) {
  const auto& parallelism = config.parallelism;
  require(config, "model.architecture", config.model.architecture == "llama",
          "this version of Orthant trains LLaMA models only", "\"llama\"");
  require(config, "parallelism.zero_stage", parallelism.zero_stage == 0,
          "this version of Orthant keeps gradients and optimizer state whole on every rank", "0");
  require(config, "parallelism.expert_parallel_degree", parallelism.expert_parallel_degree == 1,
          "this version of Orthant runs data, sequence, tensor, pipeline and vocabulary parallelism only", "1");
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

void check_laws(const Config& config, const BuildFeatures& abilities) {
  check_model_from(config);
  check_device(config, abilities);
  check_idle_settings(config);
  check_data(config);
  check_heads(config);
  check_linformer(config);
  check_biases(config);
  check_batch(config);
  check_parallelism(config);
  check_post_validation(config);
  refuse_unbuilt(config);
}

void check_config(const Config& config, const BuildFeatures& abilities) {
  try {
    check_laws(config, abilities);
  } catch (const Refusal& refusal) {
    throw completed(refusal, config, [&](const Config& other) {
      check_laws(other, abilities);
      check_mesh(other, static_cast<int>(other.run.ranks));
    });
  }
}

}  // namespace orthant
