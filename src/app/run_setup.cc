#include "app/run_setup.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/retention.h"
#include "comm/group.h"
#include "comm/transport.h"
#include "launch/process.h"
#include "launch/roll_call.h"
#include "launch/spawn.h"
#include "library/run.h"
#include "model/cuda_device.h"
#include "report/progress_bar.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReadingsKey = "launcher-readings";

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

Config load_run(const RunFileArguments& arguments, int launched) {
  Config config = load_config(arguments.run_file, arguments.overrides);
  if (launched > 0) {
    config.run.ranks = launched;
    config.origins["run.ranks"] = "launcher";
  }
  const std::string no_cuda = config.run.device == "cuda" ? cuda_problem() : "";
  return complete_run(std::move(config), {.no_cuda = no_cuda, .nccl = has_nccl(), .no_ucx = ucx_problem()});
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

TrainingData open_run_data(const Config& config, const TextProgress& progress, FileReadings* readings) {
  TrainingData data = open_training_data(config, progress, readings);
  if (config.validation.freq > 0 && data.validation.empty()) {
    throw ConfigError(fmt::format(
        "{} cannot hold a document out: {} is a single document; give it more lines or documents, name files in "
        "data.validation, or set data.validation = 0 and validation.freq = 0",
        config.locate("data.validation"), join(config.data.path, ", ")));
  }
  return data;
}

void require_memory(const MemoryNeed& need, const Config& config) {
  if (!need.exceeds_machine) return;
  throw ConfigError(fmt::format(
      "{}; lower {}, {} or the sizes of the model, such as {}, or set activation_checkpoint.mode to \"full\" "
      "(orthant plan shows what each saves)",
      need.warning, config.locate("run.ranks"), config.locate("training.local_batch_size"),
      config.locate("model.hidden_size")));
}

void share_readings(const Store& store, const FileReadings& readings) { store.set(kReadingsKey, readings.to_json()); }

TrainingData open_training_data_together(const Config& config, const Rendezvous& rendezvous) {
  constexpr double kLongestOpening_s = 24 * 3600;
  const Store store = rendezvous.store.under(fmt::format("data-open/{}", (*rendezvous.comms)++));
  const std::string of_rank_zero = rendezvous.rank == 0 ? "" : store.get("rank-0", kLongestOpening_s);
  const Store host = store.under(boot_id());
  const bool is_first = host.add("arrived", 1) == 1;
  FileReadings readings;
  if (!is_first) {
    readings = FileReadings::from_json(host.get("readings", kLongestOpening_s));
  } else if (rendezvous.store.has(kReadingsKey)) {
    readings = FileReadings::from_json(rendezvous.store.get(kReadingsKey, kLongestOpening_s));
  }
  TrainingData data =
      open_run_data(config, rendezvous.rank == 0 ? make_progress_callback("tokenizing") : TextProgress{}, &readings);
  if (is_first) host.set("readings", readings.to_json());

  const std::string ours =
      fmt::format("tokenizer {:016x}, text {:016x}, tokens {:016x}, validation {:016x}", data.tokenizer->fingerprint(),
                  data.text_fingerprint.value_or(0), data.fingerprint, data.validation_fingerprint);
  if (rendezvous.rank == 0) store.set("rank-0", ours);
  if (rendezvous.rank != 0 && ours != of_rank_zero) {
    throw ConfigError(fmt::format(
        "rank {} reads other data than rank 0: its fingerprints are {}, those of rank 0 are {}; {}, data.validation "
        "and data.tokenizer must have the same content on every host and must not change while a run starts; copy "
        "them from the host of rank 0, or start the run again",
        rendezvous.rank, ours, of_rank_zero, config.locate("data.path")));
  }
  call_roll({.store = store.under("opened"),
             .rank = rendezvous.rank,
             .world_size = rendezvous.world_size,
             .timeout_s = kLongestOpening_s,
             .check = {},
             .missed = "open its data"});
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
  return find_latest(checkpoints_of(config)).value_or("");
}

void print_unknown_keys(const std::string& path) {
  const std::string file = fs::is_directory(path) ? path + "/config.json" : path;
  const std::string unknown = unknown_keys_warning(read_hf_config(path), file);
  if (!unknown.empty()) fmt::print(stderr, "warning: {}\n", unknown);
}

std::unique_ptr<FolderLock> lock_run_folder(const Config& config) {
  std::unique_ptr<FolderLock> lock = FolderLock::try_acquire(config.job.dump_folder);
  if (lock) return lock;
  throw ConfigError(fmt::format("{}: another run writes to this folder; wait for it, or choose another folder",
                                config.locate("job.dump_folder")));
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

std::string model_directory(const std::string& directory) {
  if (fs::exists(fs::path(directory) / "config.json")) return directory;
  if (const auto latest = find_latest(directory + "/checkpoints")) return *latest;
  throw ConfigError(
      fmt::format("{} is neither a run folder with checkpoints nor a directory with config.json; name a run folder "
                  "that has saved a checkpoint, such as runs/jargon, or a Hugging Face directory",
                  directory));
}

}  // namespace orthant
