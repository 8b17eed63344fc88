// Trainer: the loop over steps on one rank, and everything that a run writes.
#pragma once

#include "comm/comm.h"
#include "plan/plan.h"
#include "runtime/metrics.h"
#include "runtime/progress.h"
#include "runtime/sample.h"
#include "runtime/session.h"
#include "runtime/snapshot.h"
#include "runtime/tensorboard.h"
#include "runtime/training_data.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

struct TrainerOptions {
  std::string resume_from;     // a checkpoint's directory, or empty
  std::string resume_command;  // what a user types to go on with this run
  std::string sample_command;
  std::string version;         // of the program, for the banner
  int threads = 1;             // of this rank
  int local_ranks = 1;         // on this machine
  std::vector<std::string> warnings;  // for the banner; empty ones are left out
  std::function<void()> write_run_folder;     // config.toml and the plan; called by rank 0 before the first step
  std::function<std::string()> write_report;  // of the run folder as it is; returns its path
};

class Trainer {
 public:
  /// Loads the weights or the checkpoint, which it compares with the run. Writes nothing, and returns when every rank
  /// is done. Throws ConfigError or DataError if this rank refuses. Plan, data and Comm must outlive the Trainer.
  Trainer(const Plan& plan, const TrainingData& data, Comm& comm, TrainerOptions options);

  /// Trains from where the checkpoint (or step 0) stands to the last step, or to a stop request. Returns an ExitCode:
  /// kDone, also after SIGTERM; kInterrupted after SIGINT. Throws Error when the loss is not finite.
  int run();

 private:
  struct Output;  // files and terminal of the speaking rank

  /// On rank 0, opens metrics.jsonl and TensorBoard's files, and calls write_run_folder.
  void open_output();
  void step(int64_t step);
  /// Records what is final of a step; throws where it is not finite.
  void know(const StepResult& result);
  /// Returns when all steps so far are final: comes before anything reads their weights.
  void settle();
  /// What is both known and measured.
  void write_steps();
  void validate(int64_t step);
  void save();
  void save_timeline();
  std::string way_out() const;  // of a run whose numbers are not finite
  [[noreturn]] void stop_on_not_finite(const StepResult& result);
  void print_banner() const;
  void finish();

  const Plan& plan_;
  const TrainingData& data_;
  Comm& comm_;
  TrainerOptions options_;
  Session session_;
  TrainState state_;
  std::shared_ptr<Output> output_;  // null on ranks that do not speak
  std::string checkpoint_;          // the newest
  StepResult last_;  // that is known
  struct Unwritten {
    StepMetrics metrics;
    int64_t tokens = 0;  // of this step
  };
  std::map<int64_t, Unwritten> unwritten_;  // by step
  double peak_flops_ = 0;           // of all ranks
};

/// FLOP/s that one rank's matrix products reach in this dtype, measured in about 30 ms.
double measure_peak_flops(const std::string& dtype);

}  // namespace orthant
