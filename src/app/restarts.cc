#include "app/restarts.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "app/run_setup.h"
#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "report/metrics.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// Distinguishes a file or directory from another one of the same path; nothing if it does not exist.
std::optional<std::pair<dev_t, ino_t>> identity_of(const std::string& path) {
  struct stat status{};
  if (path.empty() || stat(path.c_str(), &status) != 0) return std::nullopt;
  return std::pair(status.st_dev, status.st_ino);
}

// The step of a checkpoint's directory, such as step-000100.
int64_t step_of_checkpoint(const std::string& directory) {
  constexpr std::string_view kStep = "step-";
  return std::stoll(directory.substr(directory.rfind(kStep) + kStep.size()));
}

// The state of DUMP/metrics.jsonl.
struct History {
  fs::file_time_type changed = fs::file_time_type::min();
  int64_t last_step = 0;
};

class Restarts {
 public:
  Restarts(const TrainArguments& arguments, const Config& config) : arguments_(arguments), config_(config) {
    require_free_folder();
    std::string newest;
    try {
      newest = checkpoint_to_resume(config);
    } catch (const Error&) {  // an earlier run left damaged checkpoints, which this run moves away
    }
    before_this_run_ = identity_of(newest);
    prepare_start(arguments.resume ? newest : "");
  }

  std::vector<std::string> after(const RankFailure& failure) {
    const History now = history();
    const bool trained = now.changed != at_start_.changed && now.last_step > begun_after_;
    failed_starts_ = trained ? 0 : failed_starts_ + 1;
    if (failure.exit_code == kUsage) return {};
    if (failed_starts_ == kMostFailedStarts) {
      return refuse(fmt::format("{} starts in a row have failed before their first step", kMostFailedStarts));
    }
    if (restarts_ == arguments_.restarts) {
      return refuse(fmt::format("all {} of --restarts are used up", counted(restarts_, "restart")));
    }
    std::string newest;
    try {
      require_free_folder();
      newest = checkpoint_to_resume(config_);
      if (!arguments_.resume && identity_of(newest) == before_this_run_) newest.clear();  // an earlier run saved it
      // All files of a checkpoint are read only after a start has failed, because that takes long.
      if (!trained && !newest.empty()) newest = whole_checkpoint();
    } catch (const Error& error) {
      return refuse(error.what());
    }
    prepare_start(newest);
    ++restarts_;
    fmt::print(stderr, "restart {} of {}: {}{}{}. The ranks {}; {} left\n", restarts_, arguments_.restarts,
               failure.message, failure.reported ? ", for the reason above" : "",
               trained ? fmt::format(", after step {}", now.last_step) : ", before the first step", goal(newest),
               counted(arguments_.restarts - restarts_, "restart"));
    std::vector<std::string> command = arguments_.command;
    if (!arguments_.resume && !newest.empty()) command.push_back("--resume");
    return command;
  }

 private:
  static constexpr int kMostFailedStarts = 2;

  static std::vector<std::string> refuse(const std::string& why) {
    fmt::print(stderr, "the ranks are not started again: {}\n", why);
    return {};
  }

  // Another run in the folder would be taken for this one: its checkpoints, and the steps in its metrics.
  void require_free_folder() const {
    if (fs::exists(config_.job.dump_folder)) lock_run_folder(config_);  // at once free again, for the ranks
  }

  // The newest checkpoint, or the one before if that is damaged.
  std::string whole_checkpoint() const {
    if (const auto damage = replace_damaged_latest(config_.job.dump_folder + "/checkpoints")) {
      fmt::print(stderr, "warning: the newest checkpoint is damaged, so the run goes on from an earlier one: {}\n",
                 escape_for_terminal(*damage));
    }
    return checkpoint_to_resume(config_);
  }

  History history() const {
    const std::string file = config_.job.dump_folder + "/metrics.jsonl";
    std::error_code missing;
    History found{.changed = fs::last_write_time(file, missing)};
    if (missing) return {};
    try {
      const Metrics metrics = read_metrics(file);
      if (!metrics.steps.empty()) found.last_step = metrics.steps.back().step;
    } catch (const DataError&) {  // the ranks report it when they resume
    }
    return found;
  }

  // Remembers where the next start begins: at a checkpoint, or with step 1 if `checkpoint` is empty.
  void prepare_start(const std::string& checkpoint) {
    begun_after_ = checkpoint.empty() ? 0 : step_of_checkpoint(checkpoint);
    at_start_ = history();
  }

  std::string goal(const std::string& checkpoint) const {
    if (checkpoint.empty()) return "begin again with step 1, because there is no checkpoint of this run yet";
    if (begun_after_ >= config_.training.steps) return fmt::format("end the run, from {}", checkpoint);
    return fmt::format("go on with step {}, from {}", begun_after_ + 1, checkpoint);
  }

  const TrainArguments& arguments_;
  const Config config_;
  std::optional<std::pair<dev_t, ino_t>> before_this_run_;  // the newest checkpoint before the first start
  History at_start_;                                        // of the last start
  int64_t begun_after_ = 0;                                 // the step after which the last start began
  int failed_starts_ = 0;                                   // starts in a row that ended before their first step
  int64_t restarts_ = 0;
};

}  // namespace

void require_own_launcher(const Launch& launch) {
  if (launch.launcher == "orthant") return;
  const bool mpirun = launch.launcher == "openmpi" || launch.launcher == "hydra";
  const std::string name = mpirun                             ? "mpirun"
                           : launch.launcher == "slurm"       ? "srun"
                           : launch.launcher == "environment" ? "another program"
                                                              : launch.launcher;
  const std::string how =
      launch.launcher == "torchrun"
          ? "use torchrun's --max-restarts, together with --resume"
          : "let a script start the same command with --resume until it succeeds; each start then continues from the "
            "newest checkpoint";
  throw ConfigError(
      fmt::format("--restarts requires that orthant starts the ranks itself, but {} started them; {}", name, how));
}

std::function<std::vector<std::string>(const RankFailure&)> restarts_of(const TrainArguments& arguments,
                                                                        const Config& config) {
  if (arguments.restarts == 0) return nullptr;
  return [restarts = std::make_shared<Restarts>(arguments, config)](const RankFailure& failure) {
    return restarts->after(failure);
  };
}

}  // namespace orthant
