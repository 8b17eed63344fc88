// Checks the laws that involve several keys, and refuses features that this version does not run.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/errors.h"
#include "base/text.h"
#include "config/from_config.h"
#include "config/hf_config.h"
#include "config/parallelism_check.h"
#include "config/refusal.h"

namespace orthant {
namespace {

void check_batch(const Config& config) {
  const auto& training = config.training;
  const auto most = [&](const char* key, int64_t value, const char* bound_key, int64_t bound) {
    if (value <= bound) return;
    refuse(config, key, fmt::format("must be at most {}", config.locate(bound_key)), {bound_key},
           {static_cast<double>(bound), static_cast<double>(value)});
  };
  most("training.local_batch_size", training.local_batch_size, "training.global_batch_size",
       training.global_batch_size);
  const double tokens = static_cast<double>(training.global_batch_size) * static_cast<double>(training.seq_len);
  const double share = config.model.masked_share;
  if (config.model.objective == "masked" && share * tokens < 1) {
    // The offered share is 1.1 times the share that masks one token, so that two digits of it suffice.
    const double least = std::stod(fmt::format("{:.1e}", std::min(1.0, 1.1 / tokens)));
    refuse(config, "model.masked_share", fmt::format("must mask at least one of the {:.0f} tokens of a step", tokens),
           {"training.global_batch_size"}, {least, std::ceil(1 / share / static_cast<double>(training.seq_len))});
  }
  most("lr_scheduler.warmup_steps", config.lr_scheduler.warmup_steps, "training.steps", training.steps);
  most("training.seq_len", training.seq_len, "model.max_position_embeddings", config.model.max_position_embeddings);
}

void check_data(const Config& config) {
  const auto refuse_text = [&](const char* key, const char* law) {
    throw ConfigError(fmt::format("{} {}", config.locate(key), law));
  };
  if (config.job.dump_folder.empty()) refuse_text("job.dump_folder", "must name a folder, such as \"runs/a\"");
  if (config.data.path.empty()) refuse_text("data.path", "must name text files, globs or a PREFIX");
  for (const std::string& path : config.data.path) {
    if (path.empty()) refuse_text("data.path", "must not hold an empty name; name text files, globs or a PREFIX");
  }
  std::set<std::string> named;
  for (const std::string& path : config.data.path) {
    if (config.data.weights.empty() || named.insert(path).second) continue;
    throw ConfigError(
        fmt::format("{} must name each dataset of a blend once, but names \"{}\" twice; add the two weights",
                    config.locate("data.path"), path));
  }
  const size_t paths = config.data.path.size(), weights = config.data.weights.size();
  if (weights > 0 && weights != paths) {
    throw ConfigError(fmt::format("{} must have one weight for each of the {} of {}", config.locate("data.weights"),
                                  paths == 1 ? "1 entry" : fmt::format("{} entries", paths),
                                  config.locate("data.path")));
  }
  if (config.data.format == "chat") {
    const std::string reason = fmt::format("with {}", config.locate("data.format"));
    if (config.model.objective != "causal") {
      refuse(config, "model.objective", "must be \"causal\" " + reason, {"data.format"});
    }
    if (config.data.tokenizer.starts_with("train:")) {
      refuse_text("data.tokenizer", ("must be \"byte\" or name a FILE " + reason).c_str());
    }
  }
  const HeldOut& held_out = config.data.validation;
  if (config.validation.freq > 0 && held_out.sets.empty() && held_out.fraction == 0) {
    refuse(config, "validation.freq",
           fmt::format("requires documents held out for validation, but {}", config.locate("data.validation")),
           {"data.validation"}, {0});
  }
  if (!config.training.seed_weights && config.model.from.empty()) {
    refuse(config, "training.seed_weights", "requires a directory with weights in model.from");
  }
}

void check_heads(const Config& config) {
  const auto& model = config.model;
  const auto heads = static_cast<double>(model.num_attention_heads), hidden = static_cast<double>(model.hidden_size);
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    refuse(config, "model.num_key_value_heads",
           fmt::format("must divide {}", config.locate("model.num_attention_heads")), {"model.num_attention_heads"},
           {heads, static_cast<double>(model.num_key_value_heads)});
  }
  if (model.qkv_bias && model.attention_bias) {
    refuse(config, "model.qkv_bias",
           fmt::format("must be false with {}, which includes these biases", config.locate("model.attention_bias")),
           {"model.attention_bias"});
  }
  const int64_t width = model.hidden_size / model.num_attention_heads;
  const std::vector<double> even_widths = {hidden, heads, 2 * heads, static_cast<double>(width + width % 2)};
  if (model.head_dim == 0 && model.hidden_size % model.num_attention_heads != 0) {
    refuse(config, "model.num_attention_heads",
           fmt::format("must divide {} while model.head_dim is 0", config.locate("model.hidden_size")),
           {"model.hidden_size", "model.head_dim"}, even_widths);
  }
  if (!model.rotary()) return;
  constexpr const char* kPairs = "because rotary positions rotate pairs of numbers";
  if (model.head_dim % 2 != 0) refuse(config, "model.head_dim", fmt::format("must be even, {}", kPairs));
  if (model.head_dim == 0 && width % 2 != 0) {
    refuse(config, "model.hidden_size",
           fmt::format("must be a multiple of 2 x {}, {}", config.locate("model.num_attention_heads"), kPairs),
           {"model.num_attention_heads", "model.head_dim"}, even_widths);
  }
  const double low = model.rope_scaling_low_freq_factor;
  const double slow = model.rope_scaling_beta_slow;
  if (model.rope_scaling_type == "yarn" && model.rope_theta <= 1) {
    refuse(config, "model.rope_theta", fmt::format("must be above 1 with {}", config.locate("model.rope_scaling_type")),
           {"model.rope_scaling_type"});
  }
  if (model.rope_scaling_type == "yarn" && model.rope_scaling_beta_fast <= slow) {
    refuse(config, "model.rope_scaling_beta_fast",
           fmt::format("must be above {}", config.locate("model.rope_scaling_beta_slow")),
           {"model.rope_scaling_beta_slow"}, {32 * slow});
  }
  if (model.rope_scaling_type == "llama3" && model.rope_scaling_high_freq_factor <= low) {
    refuse(config, "model.rope_scaling_high_freq_factor",
           fmt::format("must be above {}", config.locate("model.rope_scaling_low_freq_factor")),
           {"model.rope_scaling_low_freq_factor"}, {4 * low});
  }
}

void check_device(const Config& config, const BuildFeatures& abilities) {
  const std::string &transport = config.run.transport, &device = config.run.device;
  const auto refuse_unless = [&](bool holds, const char* key, std::string_view law,
                                 const std::vector<std::string>& others = {}) {
    if (!holds) refuse(config, key, law, others);
  };
  const bool plans = abilities.only_plans;
  refuse_unless(device == "cpu" || plans || abilities.no_cuda.empty(), "run.device",
                "must be \"cpu\", because " + abilities.no_cuda);
  if (device == "cuda" && !plans && config.training.dtype != "float64") {
    const std::string kernels = fmt::format(
        "with {}, whose kernels of attention need heads of a multiple of 8 elements", config.locate("run.device"));
    const auto& model = config.model;
    refuse_unless(model.head_dim % 8 == 0, "model.head_dim", "must be a multiple of 8 " + kernels, {"run.device"});
    refuse_unless(model.head_dim > 0 || model.hidden_size % (8 * model.num_attention_heads) == 0, "model.hidden_size",
                  fmt::format("must be a multiple of 8 x {} {}", config.locate("model.num_attention_heads"), kernels),
                  {"model.num_attention_heads", "model.head_dim", "run.device"});
  }
  refuse_unless(transport != "ucx" || plans || abilities.no_ucx.empty(), "run.transport",
                "requires UCX, but " + abilities.no_ucx);
  refuse_unless(transport != "nccl" || plans || abilities.nccl, "run.transport",
                "requires a build of Orthant with NCCL");
  refuse_unless(transport != "nccl" || device == "cuda", "run.transport", "requires run.device = \"cuda\"",
                {"run.device"});
}

void check_offload(const Config& config, const BuildFeatures& abilities) {
  constexpr const char *kActivations = "activation_checkpoint.offload", *kState = "optimizer.offload";
  const auto check = [&](bool offloads, const char* key) {
    if (!offloads || (config.run.device == "cuda" && abilities.only_plans)) return;
    if (config.run.device == "cuda") {
      refuse(config, key, "must be false, because this version of Orthant plans offloading but does not train with it");
    }
    refuse(config, key,
           fmt::format("must be false with {}, because the tensors of a CPU rank are in host memory already",
                       config.locate("run.device")),
           {"run.device"});
  };
  check(config.activation_checkpoint.offload, kActivations);
  check(config.optimizer.offload, kState);
}

void check_settings_without_effect(const Config& config) {
  if (config.model.objective != "masked") require_default(config, "model.masked_share", "model.objective");
  const bool is_chat = config.data.format == "chat";
  if (!config.data.mask_documents && !is_chat) require_default(config, "data.long_documents", "data.mask_documents");
  if (config.data.format != "jsonl") require_default(config, "data.text_key", "data.format");
  if (!is_chat) require_default(config, "data.chat_template", "data.format");
  const bool is_chosen = config.parallelism.layout == "auto" && !config.is_set("parallelism.zero_stage");
  if (config.parallelism.zero_stage == 0 && !is_chosen) {
    require_default(config, "parallelism.data_parallel_shard_degree", "parallelism.zero_stage");
    require_default(config, "parallelism.data_parallel_replicate_degree", "parallelism.zero_stage");
  }
  if (config.training.max_norm == 0) require_default(config, "training.clip_by", "training.max_norm");
  if (config.training.on_nonfinite == "stop") {
    require_default(config, "training.max_skipped_steps", "training.on_nonfinite");
    require_default(config, "training.skip_above_norm", "training.on_nonfinite");
  }
  const auto read = optimizer_spec(config.optimizer).settings;
  for (const OptimizerSpec& other : optimizer_specs(config.optimizer)) {
    for (const std::string& setting : other.settings) {
      if (std::ranges::count(read, setting) == 0) require_default(config, "optimizer." + setting, "optimizer.name");
    }
  }
}

void check_recomputation(const Config& config) {
  constexpr const char *kMode = "activation_checkpoint.mode", *kLayers = "activation_checkpoint.layers",
                       *kOperations = "activation_checkpoint.operations";
  const auto& recompute = config.activation_checkpoint;
  if (recompute.mode == "none") require_default(config, kLayers, kMode);
  if (recompute.mode != "selective") require_default(config, kOperations, kMode);
  if (recompute.mode == "selective" && recompute.operations.empty()) {
    refuse(config, kOperations,
           fmt::format("must name at least one of {} with {}, such as [\"norms\", \"swiglu\"]",
                       join(std::vector<std::string>(std::begin(kRecomputedParts), std::end(kRecomputedParts)), ", "),
                       config.locate(kMode)),
           {kMode});
  }
  for (const std::string& operation : recompute.operations) {
    if (std::ranges::count(recompute.operations, operation) == 1) continue;
    refuse(config, kOperations, fmt::format("must name each operation once, but {} is there twice", operation), {});
  }
  if (recompute.layers > config.model.num_hidden_layers) {
    refuse(config, kLayers,
           fmt::format("must be at most {}, or no block recomputes", config.locate("model.num_hidden_layers")),
           {"model.num_hidden_layers"}, {static_cast<double>(config.model.num_hidden_layers)});
  }
}

void check_linformer(const Config& config) {
  const auto& model = config.model;
  if (model.linformer_length == 0) return;
  constexpr const char* kKey = "model.linformer_length";
  if (model.objective != "masked") {
    refuse(config, kKey,
           fmt::format("requires model.objective = \"masked\", but {}; its projections mix later tokens into every key",
                       config.locate("model.objective")),
           {"model.objective"}, {0});
  }
  if (model.linformer_length > config.training.seq_len) {
    refuse(config, kKey, fmt::format("must be at most {}", config.locate("training.seq_len")), {"training.seq_len"},
           {0, static_cast<double>(config.training.seq_len), static_cast<double>(model.linformer_length)});
  }
  const auto law = [&](const char* value) {
    return fmt::format("must be {} with {}, because Linformer's projections mix all tokens of a sequence", value,
                       config.locate(kKey));
  };
  if (model.sliding_window != 0) refuse(config, "model.sliding_window", law("0"), {kKey}, {0});
  if (config.data.mask_documents) refuse(config, "data.mask_documents", law("false"), {kKey}, {0});
}

void check_post_validation(const Config& config) {
  if (!config.parallelism.pipeline_parallel_post_validation) return;
  const auto must_be_false = [&](const char* other, const char* reason) {
    refuse(config, "parallelism.pipeline_parallel_post_validation",
           fmt::format("must be false with {}, because {}", config.locate(other), reason), {other});
  };
  if (shards_vocabulary(config)) {
    must_be_false("parallelism.vocabulary_parallel", "all ranks then wait for each other in every microbatch");
  }
  if (config.training.clips_by_previous_norm()) {
    must_be_false("training.clip_by", "no update then waits for the norm of its step");
  }
}

void check_update_in_backward(const Config& config) {
  if (!config.optimizer.in_backward) return;
  if (config.training.on_nonfinite != "stop") {
    refuse(config, "training.on_nonfinite",
           fmt::format("must be \"stop\" with {}, because parameters are updated before the norm of all gradients is "
                       "known",
                       config.locate("optimizer.in_backward")),
           {"optimizer.in_backward"});
  }
  if (config.training.max_norm == 0 || config.training.clips_by_previous_norm()) return;
  refuse(config, "training.max_norm",
         fmt::format("must be 0 with {}, unless training.clip_by = \"previous_norm\", because the norm of all "
                     "gradients is known only after backward",
                     config.locate("optimizer.in_backward")),
         {"training.clip_by", "optimizer.in_backward"}, {0});
}

void refuse_unbuilt(const Config& config) {
  const auto require_value = [&](bool holds, const char* key, const char* value, const char* reason) {
    if (!holds) refuse(config, key, fmt::format("must be {}, because this version of Orthant {}", value, reason));
  };
  require_value(config.parallelism.expert_parallel_degree == 1, "parallelism.expert_parallel_degree", "1",
                "has no expert parallelism");
}

}  // namespace

void check_model_from(const Config& config) {
  const std::filesystem::path from = config.model.from;
  if (from.empty()) return;
  std::error_code ignored;
  if (!std::filesystem::is_directory(from, ignored)) {
    throw ConfigError(config.locate("model.from") + " must be a directory that holds a config.json" +
                      how_to_download(config.model.from));
  }
  if (!std::filesystem::exists(from / "config.json", ignored)) {
    throw ConfigError(config.locate("model.from") +
                      " must hold a config.json; name a Hugging Face directory or a checkpoint");
  }
}

void check_config(const Config& config, const BuildFeatures& abilities) {
  check_model_from(config);
  check_device(config, abilities);
  check_offload(config, abilities);
  check_settings_without_effect(config);
  check_data(config);
  check_heads(config);
  check_recomputation(config);
  check_linformer(config);
  check_batch(config);
  check_parallelism(config);
  check_post_validation(config);
  check_update_in_backward(config);
  refuse_unbuilt(config);
}

}  // namespace orthant
