// Completes a run from the files that it names: the config.json of its model, and its tokenizer.
#include "library/run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "advice/advised_plan.h"
#include "advice/auto_layout.h"
#include "advice/fit.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/hf_config.h"
#include "config/table.h"
#include "data/corpus.h"
#include "data/tokenizer.h"
#include "plan/pipeline.h"
#include "plan/plan_memory.h"
#include "report/chart.h"
#include "schedule/draw.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// Takes the model's sizes from a config.json, or the directory that contains it. Keys given in the run file or on the
// command line must have the same values, or replace those of the model if `may_differ`. A head_dim or vocab_size of 0
// counts as not given.
void load_model_sizes(Config& config, const std::string& path, bool may_differ) {
  Config from_model;
  static_cast<Architecture&>(from_model.model) = read_hf_config(path).model;
  const Config defaults;
  for (const Key* key : model_keys()) {
    if (!key->hugging_face.is_stated()) continue;
    const std::string name = key->full_name(), value = value_text(*key, from_model), before = value_text(*key, config);
    // A masked model must stay masked; a causal model may continue as either. A window or cap may be added.
    if (key->hugging_face.only_if_set && value == value_text(*key, defaults)) continue;
    const bool derived = (key->name == "head_dim" || key->name == "vocab_size") && before == "0";
    const std::string given = config.locate(name);
    const bool contradicts = config.is_set(name) && !derived && value != before;
    if (contradicts && may_differ) continue;
    copy_value(*key, from_model, config);
    config.origins[name] = fs::is_directory(path) ? path + "/config.json" : path;
    if (!contradicts) continue;
    throw ConfigError(fmt::format("{}, but {}; leave it out, or make the two equal", given, config.locate(name)));
  }
  for (const Key* key : model_keys()) {
    if (const auto law = illegal(*key, config)) throw ConfigError(config.locate(key->full_name()) + " " + *law);
  }
}

// Takes the tokenizer of the model's directory, unless the run file or the command line names one.
void default_tokenizer(Config& config, const std::string& directory) {
  if (config.is_set("data.tokenizer")) return;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const fs::path path = fs::path(directory) / name;
    if (!fs::is_regular_file(path)) continue;
    config.data.tokenizer = path.string();
    config.origins["data.tokenizer"] = "default with model.from";
    return;
  }
}

RunFacts facts_of_run(const Config& config, int ranks, int64_t vocab_size) {
  return {.ranks = ranks, .vocab_size = vocab_size, .hardware = find_hardware(config, ranks)};
}

}  // namespace

Config complete_run(Config config, const BuildFeatures& features) {
  check_model_from(config);
  if (!config.model.from.empty()) {
    load_model_sizes(config, config.model.from, false);
    default_tokenizer(config, config.model.from);
  }
  check_with_advice(config, features);
  return config;
}

RunToPlan run_to_plan(Config parsed) {
  const Config config = complete_run(std::move(parsed), {.only_plans = true});
  return {config, facts_without_data(config, static_cast<int>(config.run.ranks))};
}

RunToPlan model_to_plan(const std::string& path, std::span<const std::string> overrides) {
  const std::string defaults =
      "[run]\ndevice = \"cuda\"\n[training]\ndtype = \"bfloat16\"\nlocal_batch_size = 1\n[validation]\nfreq = 0\n";
  Config config = parse_config(defaults, "hf", overrides);
  for (auto& [key, origin] : config.origins) {
    if (origin.starts_with("hf:")) origin = "default of --hf";
  }
  if (!config.model.from.empty()) {
    throw ConfigError(config.locate("model.from") + " must be empty with --hf, which names the model; leave it out");
  }
  load_model_sizes(config, path, true);
  if (!config.is_set("run.ranks")) throw ConfigError("--hf requires the number of devices; add --ranks 8");
  const auto set = [&](int64_t& value, const std::string& key, int64_t otherwise) {
    if (config.is_set(key)) return;
    value = otherwise;
    config.origins[key] = "default of --hf";
  };
  set(config.training.seq_len, "training.seq_len", std::min<int64_t>(4096, config.model.max_position_embeddings));
  set(config.training.global_batch_size, "training.global_batch_size", config.run.ranks);
  check_with_advice(config, {.only_plans = true});
  const RunFacts facts = facts_of_model(config);
  return {config, facts_of_run(config, facts.ranks, facts.vocab_size)};
}

RunFacts facts_without_data(const Config& config, int ranks) {
  if (config.model.vocab_size == 0) return facts_before_data(config, ranks);
  const std::string& spec = config.data.tokenizer;
  if (spec.starts_with("train:")) return facts_of_run(config, ranks, pieces_to_train(spec));
  if (spec != "byte" && !fs::exists(spec)) return facts_of_run(config, ranks, facts_of_model(config).vocab_size);
  return facts_of_run(config, ranks, load_tokenizer(spec, "", {})->vocab_size());
}

RunFacts facts_before_data(const Config& config, int ranks) {
  check_prefixes(config.data.path, config.data.format, !config.data.weights.empty(), config.locate("data.path"));
  text_files_of(config.data.path);  // throws for a missing file
  const std::string& spec = config.data.tokenizer;
  return facts_of_run(config, ranks,
                      spec.starts_with("train:") ? pieces_to_train(spec) : load_tokenizer(spec, "", {})->vocab_size());
}

std::string planned_svg(const Plan& plan) {
  const int rank = plan.worst_rank();
  RankTrace trace = trace_memory(plan, rank);
  MemoryCurve memory{.pipeline_rank = plan.pipeline_rank(rank),
                     .title = fmt::format("tensors of rank {}, which needs most memory", rank),
                     .base_bytes = trace.always,
                     .bytes = std::move(trace.row)};
  const MemoryBytes& worst = plan.memory_of(rank);
  if (!worst.peak) {
    memory.title += fmt::format(" ({} in the update)", format_bytes(static_cast<double>(worst.total())));
  }
  if (const auto most = most_tensor_bytes(plan)) {
    const bool is_of_device = most == most_tensor_bytes_of_device(plan);
    memory.limit_bytes = *most;
    memory.limit_text =
        fmt::format("{} {} of tensors", is_of_device ? "a device has room for" : "the limit is", room_text(*most));
  }
  const bool has_pipeline = plan.schedule.rows.size() > 1;
  std::string what = has_pipeline ? "Planned " + escape(schedule_text(plan.config)) : "Planned step";
  if (plan.step_time && plan.step_time->sharing > 0) {
    what += fmt::format("; ranks share cores, which adds {}", format_seconds(plan.step_time->sharing));
  }
  return draw_svg(plan.schedule, plan.timeline, what, &memory);
}

}  // namespace orthant
