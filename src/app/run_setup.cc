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
#include "launch/spawn.h"
#include "library/run.h"
#include "model/cuda_device.h"
#include "report/progress_bar.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

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

void require_memory(const MemoryNeed& need, const Config& config) {
  if (!need.exceeds_machine) return;
  throw ConfigError(fmt::format(
      "{}; lower {}, {} or the sizes of the model, such as {}, or set activation_checkpoint.mode to \"full\" "
      "(orthant plan shows what each saves)",
      need.warning, config.locate("run.ranks"), config.locate("training.local_batch_size"),
      config.locate("model.hidden_size")));
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
