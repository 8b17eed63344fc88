#include "app/run_setup.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "advice/advised_plan.h"
#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/retention.h"
#include "comm/group.h"
#include "comm/transport.h"
#include "config/hf_config.h"
#include "config/table.h"
#include "data/tokenizer.h"
#include "launch/spawn.h"
#include "model/cuda_device.h"
#include "plan/pipeline.h"
#include "plan/plan_memory.h"
#include "report/chart.h"
#include "report/progress_bar.h"
#include "schedule/draw.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

bool is_given(const Config& config, const std::string& key) {
  const auto origin = config.origins.find(key);
  return origin != config.origins.end() && !origin->second.starts_with("default");
}

// Takes the model's sizes from a config.json, or the directory that contains it. Keys given in the run file or on the
// command line must have the same values; a head_dim or vocab_size of 0 counts as not given.
void load_model_sizes(Config& config, const std::string& path) {
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
    const bool contradicts = is_given(config, name) && !derived && value != before;
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
  if (is_given(config, "data.tokenizer")) return;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const fs::path path = fs::path(directory) / name;
    if (!fs::is_regular_file(path)) continue;
    config.data.tokenizer = path.string();
    config.origins["data.tokenizer"] = "default with model.from";
    return;
  }
}

std::string checkpoints_of(const Config& config) { return config.job.dump_folder + "/checkpoints"; }

// How to resume the run in `folder` if it stopped before its last step; empty otherwise, or if that is unknown.
std::string resume_hint(const std::string& folder) {
  const std::vector<int64_t> saved = list_steps(folder + "/checkpoints");
  try {
    const int64_t steps = load_config(folder + "/config.toml", {}).training.steps;
    if (saved.empty() || saved.back() >= steps) return "";
    return fmt::format("; its last checkpoint is of step {} of {}: to resume it, add --resume --job.dump_folder {}",
                       saved.back(), steps, folder);
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

Config load_run(const RunFileArguments& arguments, int launched, bool only_plans) {
  Config config = load_config(arguments.run_file, arguments.overrides);
  if (launched > 0) {
    config.run.ranks = launched;
    config.origins["run.ranks"] = "launcher";
  }
  check_model_from(config);
  if (!config.model.from.empty()) {
    load_model_sizes(config, config.model.from);
    default_tokenizer(config, config.model.from);
  }
  check_with_advice(config, {.only_plans = only_plans,
                             .no_cuda = config.run.device == "cuda" && !only_plans ? cuda_problem() : "",
                             .nccl = has_nccl(),
                             .no_ucx = ucx_problem()});
  return config;
}

Config load_planned_model(const PlanArguments& arguments) {
  const std::string defaults =
      "[run]\ndevice = \"cuda\"\n[training]\ndtype = \"bfloat16\"\nlocal_batch_size = 1\n[validation]\nfreq = 0\n";
  Config config = parse_config(defaults, "hf", arguments.overrides);
  for (auto& [key, origin] : config.origins) {
    if (origin.starts_with("hf:")) origin = "default of --hf";
  }
  if (!config.model.from.empty()) {
    throw ConfigError(config.locate("model.from") + " must be empty with --hf, which names the model; leave it out");
  }
  load_model_sizes(config, arguments.hf);
  if (!is_given(config, "run.ranks")) throw ConfigError("--hf requires the number of devices; add --ranks 8");
  const auto set = [&](int64_t& value, const std::string& key, int64_t otherwise) {
    if (is_given(config, key)) return;
    value = otherwise;
    config.origins[key] = "default of --hf";
  };
  set(config.training.seq_len, "training.seq_len", std::min<int64_t>(4096, config.model.max_position_embeddings));
  set(config.training.global_batch_size, "training.global_batch_size", config.run.ranks);
  check_with_advice(config, {.only_plans = true, .nccl = true, .no_ucx = {}});
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
  if (config.validation.freq > 0 && data.validation.empty()) {
    throw ConfigError(fmt::format(
        "{} cannot hold a document out: {} is a single document; give it more lines or documents, name files in "
        "data.validation, or set data.validation = 0 and validation.freq = 0",
        config.locate("data.validation"), join(config.data.path, ", ")));
  }
  return data;
}

RunFacts facts_without_data(const Config& config, int ranks) {
  if (config.model.vocab_size == 0) return facts_before_data(config, ranks);
  const std::string& spec = config.data.tokenizer;
  if (spec.starts_with("train:")) return {.ranks = ranks, .vocab_size = pieces_to_train(spec)};
  if (spec != "byte" && !fs::exists(spec)) return facts_of_model(config);
  return {.ranks = ranks, .vocab_size = load_tokenizer(spec, "", {})->vocab_size()};
}

RunFacts facts_before_data(const Config& config, int ranks) {
  RunFacts facts{.ranks = ranks};
  check_data_paths(config);
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
  const int rank = plan.worst_rank();
  RankTrace trace = trace_memory(plan, rank);
  const MemoryCurve memory{
      .pipeline_rank = plan.pipeline_rank(rank),
      .title = fmt::format("tensors of rank {}, which needs most memory", rank),
      .base_bytes = trace.always,
      .bytes = std::move(trace.row),
      .limit_bytes = plan.facts.hardware ? std::llround(plan.facts.hardware->device.memory_bytes) : 0};
  return draw_svg(plan.schedule, plan.timeline, "Planned " + escape(schedule_text(plan.config)), &memory);
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
                                      "checkpoints", "report.html",   "timeline.json", "sample.txt",   "metrics.prom"};
  if (!fs::exists(folder / "metrics.jsonl") && !fs::exists(folder / "checkpoints")) return;
  int number = 1;
  while (fs::exists(folder / "earlier" / std::to_string(number))) ++number;
  const fs::path aside = folder / "earlier" / std::to_string(number);
  fs::create_directories(aside);
  for (const char* name : kWritten) {
    if (fs::exists(fs::symlink_status(folder / name))) fs::rename(folder / name, aside / name);
  }
  std::fprintf(stderr, "the files of an earlier run were moved to %s%s\n", aside.c_str(), resume_hint(aside).c_str());
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
