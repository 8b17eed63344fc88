#include "app/run_setup.h"

#include "app/progress_bar.h"
#include "app/report_chart.h"
#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_config.h"
#include "comm/spawn.h"
#include "comm/group.h"
#include "comm/transport.h"
#include "data/tokenizer.h"
#include "plan/pipeline.h"
#include "schedule/draw.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

namespace orthant {
namespace {

namespace fs = std::filesystem;

// The abilities of this build. check_config() decides whether this version can use them for training.
BuildFeatures abilities() { return {.cuda = has_nccl(), .nccl = has_nccl(), .no_ucx = ucx_problem()}; }

bool is_given(const Config& config, const std::string& key) {
  const auto origin = config.origins.find(key);
  return origin != config.origins.end() && !origin->second.starts_with("default");
}

// Takes the model's sizes from a Hugging Face directory. Keys given in the run file or on the command line must have
// the same values; a head_dim or vocab_size of 0 counts as not given.
void load_model_sizes(Config& config, const std::string& directory) {
  const HfConfig from = read_hf_config(directory);
  auto& m = config.model;
  auto take = [&](const char* name, auto& value, const auto& from_model, bool is_unset = false) {
    const std::string key = std::string("model.") + name;
    const std::string given = config.locate(key);
    const bool contradicts = is_given(config, key) && !is_unset && value != from_model;
    value = from_model;
    config.origins[key] = directory + "/config.json";
    if (!contradicts) return;
    throw ConfigError(fmt::format("{}, but {}; leave it out, or make the two equal", given, config.locate(key)));
  };
  take("hidden_size", m.hidden_size, from.hidden_size);
  take("intermediate_size", m.intermediate_size, from.intermediate_size);
  take("num_hidden_layers", m.num_hidden_layers, from.num_hidden_layers);
  take("num_attention_heads", m.num_attention_heads, from.num_attention_heads);
  take("num_key_value_heads", m.num_key_value_heads, from.num_key_value_heads);
  take("head_dim", m.head_dim, from.head_dim, m.head_dim == 0);
  take("vocab_size", m.vocab_size, from.vocab_size, m.vocab_size == 0);
  // A masked model must stay masked; a causal model may continue as either.
  if (!from.is_causal) take("objective", m.objective, std::string("masked"));
  if (from.sliding_window > 0) take("sliding_window", m.sliding_window, from.sliding_window);
  if (from.final_logit_softcapping > 0) {
    take("final_logit_softcapping", m.final_logit_softcapping, from.final_logit_softcapping);
  }
  if (from.linformer_length > 0) take("linformer_length", m.linformer_length, from.linformer_length);
  take("max_position_embeddings", m.max_position_embeddings, from.max_position_embeddings);
  take("rms_norm_eps", m.rms_norm_eps, from.rms_norm_eps);
  take("rope_theta", m.rope_theta, from.rope_theta);
  take("rope_scaling_type", m.rope_scaling_type, from.rope_scaling_type);
  take("rope_scaling_factor", m.rope_scaling_factor, from.rope_scaling_factor);
  take("rope_scaling_low_freq_factor", m.rope_scaling_low_freq_factor, from.rope_scaling_low_freq_factor);
  take("rope_scaling_high_freq_factor", m.rope_scaling_high_freq_factor, from.rope_scaling_high_freq_factor);
  take("rope_scaling_original_max_position_embeddings", m.rope_scaling_original_max_position_embeddings,
       from.rope_scaling_original_max_position_embeddings);
  take("tie_word_embeddings", m.tie_word_embeddings, from.tie_word_embeddings);
  take("attention_bias", m.attention_bias, from.attention_bias);
  take("mlp_bias", m.mlp_bias, from.mlp_bias);
  take("initializer_range", m.initializer_range, from.initializer_range);
}

std::string checkpoints_of(const Config& config) { return config.job.dump_folder + "/checkpoints"; }

}  // namespace

Config load_run(const RunFileArguments& arguments, int launched) {
  Config config = load_config(arguments.run_file, arguments.overrides);
  if (launched > 0) {
    config.run.ranks = launched;
    config.origins["run.ranks"] = "launcher";
  }
  check_model_from(config);
  if (!config.model.from.empty()) load_model_sizes(config, config.model.from);
  check_config(config, abilities());
  return config;
}

int threads_per_rank(const Config& config, int local_ranks) {
  if (config.run.threads_per_rank > 0) return static_cast<int>(config.run.threads_per_rank);
  return std::max(1, cores_of_local_ranks(local_ranks) / std::max(1, local_ranks));
}

std::function<void(int64_t, int64_t)> make_progress_callback(const std::string& label, const std::string& unit) {
  const auto bar = std::make_shared<ProgressBar>(label, unit);
  return [bar, finished = false](int64_t done, int64_t total) mutable {
    if (std::exchange(finished, finished || done == total)) return;
    bar->update(done, total);
    if (finished) bar->finish();
  };
}

TrainingData open_run_data(const Config& config, const TextProgress& progress) {
  TrainingData data = open_training_data(config, progress);
  if (config.validation.freq > 0 && !data.held_out) {
    throw ConfigError(fmt::format(
        "{} cannot hold a document out: {} is a single document; give it more lines or documents, name files in "
        "data.validation, or set data.validation = 0 and validation.freq = 0",
        config.locate("data.validation"), join(config.data.path, ", ")));
  }
  return data;
}

RunFacts facts_before_data(const Config& config, int ranks) {
  RunFacts facts{.ranks = ranks};
  if (!is_indexed_prefix(config.data.path)) expand_paths(config.data.path);
  const std::string& spec = config.data.tokenizer;
  facts.vocab_size =
      spec.starts_with("train:") ? pieces_to_train(spec) : load_tokenizer(spec, "", {})->vocab_size();
  return facts;
}

void require_memory(const MemoryNeed& need, const Config& config) {
  if (!need.exceeds_machine) return;
  throw ConfigError(fmt::format(
      "{}; lower {}, {} or the sizes of the model, such as {}, or set activation_checkpoint.mode to \"full\" "
      "(orthant plan shows what each saves)",
      need.warning, config.locate("run.ranks"), config.locate("training.local_batch_size"),
      config.locate("model.hidden_size")));
}

std::string planned_svg(const Plan& plan) {
  return draw_svg(plan.schedule, plan.timeline, "Planned " + escape(schedule_text(plan.config)));
}

TrainingData open_training_data_together(const Config& config, const Rendezvous& rendezvous) {
  constexpr double kLongestOpening_s = 24 * 3600;
  const auto wait_for = [&](int rank) { rendezvous.store.get(fmt::format("data-open/{}", rank), kLongestOpening_s); };
  if (rendezvous.rank != 0) wait_for(0);
  TrainingData data =
      open_run_data(config, rendezvous.rank == 0 ? make_progress_callback("tokenizing") : TextProgress{});
  rendezvous.store.set(fmt::format("data-open/{}", rendezvous.rank), "");
  for (int rank = 0; rank < rendezvous.world_size; ++rank) wait_for(rank);
  return data;
}

std::string checkpoint_to_resume(const Config& config) {
  const fs::path link = fs::path(checkpoints_of(config)) / "latest";
  std::error_code ignored;
  if (fs::is_directory(fs::symlink_status(link, ignored))) {
    throw DataError(
        fmt::format("{} is a directory, but it must be a link to the newest checkpoint; rename it, "
                    "or move it away",
                    link.string()));
  }
  const auto found = find_latest(checkpoints_of(config));
  if (!found) {
    throw ConfigError(fmt::format("--resume: there is no checkpoint in {} ({}); start without --resume",
                                  checkpoints_of(config), config.locate("job.dump_folder")));
  }
  return *found;
}

void archive_earlier_run(const Config& config) {
  const fs::path folder = config.job.dump_folder;
  constexpr const char* kWritten[] = {"config.toml", "metrics.jsonl", "plan.json",     "schedule.svg", "tb",
                                      "checkpoints", "report.html",   "timeline.json", "sample.txt"};
  if (!fs::exists(folder / "metrics.jsonl") && !fs::exists(folder / "checkpoints")) return;
  int number = 1;
  while (fs::exists(folder / "earlier" / std::to_string(number))) ++number;
  const fs::path aside = folder / "earlier" / std::to_string(number);
  fs::create_directories(aside);
  for (const char* name : kWritten) {
    if (fs::exists(fs::symlink_status(folder / name))) fs::rename(folder / name, aside / name);
  }
  std::fprintf(stderr, "the files of an earlier run were moved to %s\n", aside.c_str());
}

std::string advice_after_failure(const Config& config, const std::string& resume_command) {
  std::optional<std::string> latest;
  try {
    latest = find_latest(checkpoints_of(config));
  } catch (const Error& error) {
    return error.what();
  }
  if (!latest) return "There is no checkpoint yet: start the run again.";
  return fmt::format("Resume from {} with:\n  {}", *latest, resume_command);
}

}  // namespace orthant
