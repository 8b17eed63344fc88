// The run file as a value: one plain struct per TOML section, and the source of every value. Members are named as the
// keys and have the documented defaults. The single table of ranges and help texts is in table.cc; parsing,
// checks, help and the reference page are made from it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/named_files.h"
#include "model/architecture.h"
#include "model/optimizer_plan.h"

namespace orthant {

struct JobConfig {
  std::string dump_folder = "runs/run";  // load_config() and parse_config(): runs/NAME for NAME.toml
  std::string description;
};

struct RunConfig {
  int64_t ranks = 4;
  std::string device = "cpu";
  std::string transport = "auto";
  int64_t threads_per_rank = 0;
  double timeout_s = 600.0;
  double memory_gib_per_rank = 0;
  std::string hardware;
};

struct ModelConfig : Architecture {
  std::string from;
  double masked_share = 0.15;
};

/// Value of data.validation: the fraction of the documents to hold out, or sets of files. If files are given, they are
/// used and `fraction` is 0. A list of files is a single set without a name.
struct HeldOut {
  double fraction = 0.05;
  std::vector<NamedFiles> sets;
  bool operator==(const HeldOut&) const = default;
};

struct DataConfig {
  std::vector<std::string> path = {"corpus.txt"};
  std::vector<double> weights;
  std::string format = "text";
  std::string text_key = "text";
  std::string chat_template;
  HeldOut validation;
  std::string tokenizer = "byte";
  bool mask_documents = false;
  std::string long_documents = "refuse";
};

struct TrainingConfig {
  int64_t steps = 300;
  int64_t seq_len = 256;
  int64_t global_batch_size = 32;
  int64_t local_batch_size = 4;
  std::string dtype = "float32";
  double max_norm = 1.0;
  std::string clip_by = "norm";
  bool clips_by_previous_norm() const { return max_norm > 0 && clip_by == "previous_norm"; }
  std::string on_nonfinite = "stop";
  int64_t max_skipped_steps = 10;
  double skip_above_norm = 0.0;
  double label_smoothing = 0.0;
  double z_loss = 0.0;
  int64_t seed = 1234;
  bool seed_weights = true;
};

struct ActivationCheckpointConfig {
  std::string mode = "none";
  std::vector<std::string> operations = {};
  int64_t layers = 1;
  bool offload = false;
};

struct LrSchedulerConfig {
  std::string decay_type = "cosine";
  int64_t warmup_steps = 20;
  double decay_ratio = 1.0;
  double min_lr_factor = 0.1;
};

struct ValidationConfig {
  int64_t freq = 50;
  int64_t steps = 8;
};

struct MetricsConfig {
  int64_t log_freq = 1;
  bool enable_tensorboard = true;
  bool enable_prometheus = false;
  int64_t port = 0;
  int64_t sample_tokens = 240;
};

struct CheckpointConfig {
  int64_t interval = 100;
  std::string async_mode = "disabled";
  int64_t keep_latest_k = 2;
};

struct ParallelismConfig {
  std::string layout = "given";
  int64_t data_parallel_degree = -1;
  int64_t zero_stage = 0;
  std::string zero_reshard = "step";
  int64_t data_parallel_shard_degree = 0;
  int64_t data_parallel_replicate_degree = 0;
  double bucket_mib = 25.0;
  std::string tensor_parallel_kind = "1d";
  int64_t tensor_parallel_degree = 1;
  std::array<int64_t, 3> tensor_parallel_mesh = {1, 1, 1};
  bool tensor_parallel_sequence = true;
  std::string tensor_parallel_product = "stationary";
  int64_t context_parallel_ulysses = 1;
  int64_t context_parallel_ring = 1;
  std::string context_parallel_attention = "ring_attention";
  std::string context_parallel_placement = "zigzag";
  int64_t context_parallel_window = 0;
  std::string context_parallel_reduction = "reduce_scatter";
  int64_t pipeline_parallel_degree = 1;
  std::string pipeline_parallel_schedule = "1f1b";
  int64_t pipeline_parallel_stages_per_rank = 0;
  std::vector<int64_t> pipeline_parallel_layers = {};
  bool pipeline_parallel_post_validation = false;
  std::string vocabulary_parallel = "none";
  std::string outer_axis = "pipeline";
  int64_t expert_parallel_degree = 1;
};

struct Config {
  JobConfig job;
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TrainingConfig training;
  ActivationCheckpointConfig activation_checkpoint;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  ValidationConfig validation;
  MetricsConfig metrics;
  CheckpointConfig checkpoint;
  ParallelismConfig parallelism;

  /// Maps "section.key" to the source of its value: "run.toml:14", "command line" or, for example, "gpt/config.json".
  /// A key without an entry has its default. Code that changes a value after loading must also set its origin here.
  std::map<std::string, std::string, std::less<>> origins;

  /// Returns `parallelism.zero_stage = 1 (run.toml:14)`, the form in which every ConfigError names a value. Throws
  /// LogicError for an unknown key.
  std::string locate(std::string_view key) const;
  /// True if the run file or the command line sets the key.
  bool is_set(const std::string& key) const;
};

/// Origin of the keys that layout = "auto" or tensor_parallel_kind = "auto" has set.
inline constexpr const char* kChosenByAuto = "chosen by \"auto\"";

/// True if all keys have equal values. Origins are not compared.
bool operator==(const Config& a, const Config& b);

/// Reads the run file (an empty path means defaults only), then applies the overrides: "--section.key",
/// "--section.key=v" or "section.key=v". A value may follow as the next element. In keys, '-' and '_' are the same.
/// Lists are written "a,b"; "--section.flag" and "--section.no-flag" set booleans. Throws ConfigError for unknown keys,
/// wrong types, values out of range, keys given twice in the file and TOML syntax errors. The message has the position
/// and the nearest key or the legal values.
Config load_config(const std::string& path, std::span<const std::string> overrides);

/// Like load_config(), but reads `text`. `name` stands for the file in messages and origins.
Config parse_config(std::string_view text, const std::string& name, std::span<const std::string> overrides);

/// Moves the overrides out of a command line and returns them in order, each with the element that holds its value.
/// Commands, files and plain options stay. An element is an override if it reads "--section.key..." or
/// "section.key=...". The key's type decides whether the next element is taken as its value.
std::vector<std::string> take_overrides(std::vector<std::string>& arguments);

/// Features beyond those of the plain CPU build. Only the caller can know them.
struct BuildFeatures {
  /// The run is planned and not carried out. It may need devices and libraries that this machine lacks.
  bool only_plans = false;
  /// The reason why CUDA devices cannot be used; empty if they can.
  std::string no_cuda = "this build of Orthant has no CUDA";
  bool nccl = false;
  /// The reason why UCX cannot be used; empty if it can.
  std::string no_ucx = "this build of Orthant has no UCX";
};

/// Throws ConfigError unless model.from is empty or names a directory that holds a config.json.
void check_model_from(const Config& config);

/// Checks the laws that involve several keys and need no model, mesh or data, and refuses features that this version
/// does not run yet. Throws ConfigError with legal values.
void check_config(const Config& config, const BuildFeatures& abilities = {});

/// Returns the effective configuration as TOML. A comment on each line names the source of the value. The text parses
/// back to an equal Config.
std::string print_config(const Config& config);

/// Returns the text of --help: all keys by section, each with `--section.key TYPE`, help, default and legal values.
std::string config_help();
/// Returns the short help: the most used keys, one line of at most 80 columns each.
std::string config_short_help();

/// Returns the reference page of the run file in Markdown (docs/run-file.md).
std::string config_reference();

/// Returns "section.key" for every key, in the order of config_table().
std::vector<std::string> config_keys();
/// Returns the full names of the keys whose last component is `name`; '-' counts as '_'.
std::vector<std::string> keys_named(std::string_view name);

}  // namespace orthant
