// Trainer: the loop over steps on one rank, and all files and terminal output of a run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/comm.h"
#include "plan/plan.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "report/prometheus.h"
#include "report/tensorboard.h"
#include "runtime/sample.h"
#include "runtime/session.h"
#include "runtime/snapshot.h"
#include "runtime/snapshot_saver.h"
#include "runtime/training_data.h"

namespace orthant {

struct TrainerOptions {
  std::string resume_from;     // directory of a checkpoint, or empty
  std::string resume_command;  // command that continues this run, for messages
  std::string sample_command;
  std::string version;                        // of the program, for the banner
  int threads = 1;                            // of this rank
  int local_ranks = 1;                        // number of ranks on this machine
  std::vector<std::string> warnings;          // for the banner; empty ones are left out
  double device_peak_flops = 0;               // of a GPU, by its data sheet; 0: measured on the CPU
  std::function<void()> write_run_folder;     // writes config.toml and the plan; called on rank 0 before step 1
  std::function<std::string()> write_report;  // writes the report of the run folder; returns its path
};

class Trainer {
 public:
  /// Loads the weights; or loads the checkpoint, after checking that the run may continue from it. Returns when all
  /// ranks have done so; writes nothing. Throws ConfigError or DataError on a rank that refuses. Plan, data and Comm
  /// must outlive the Trainer.
  Trainer(const Plan& plan, const TrainingData& data, Comm& comm, TrainerOptions options);

  /// Trains from the checkpoint's step (or from step 0) to the last step, or until a stop is requested. Returns an
  /// ExitCode: kDone, also after SIGTERM; kInterrupted after SIGINT. Throws Error if Session::must_skip() holds in more
  /// consecutive steps than the run file lets it skip, or if a weight is not finite when a checkpoint is saved.
  int run();

 private:
  struct Output;  // files and terminal; exists on rank 0

  /// On rank 0: opens metrics.jsonl and TensorBoard's files, and calls write_run_folder if a step is left.
  void open_output();
  bool has_steps_left() const { return state_.step < plan_.config.training.steps; }
  /// Runs one step, and records its times.
  void step(int64_t step);
  /// Records the result of a step that has become final. Throws if the step must be skipped and the run permits no
  /// further one.
  void record_result(const StepResult& result);
  /// Ends the time of a step, and begins that of the next one. A GPU still works when step() returns, so there a step's
  /// time ends where its result arrives.
  void end_time_of(int64_t step);
  /// Returns when all steps so far are final. Must be called before anything else reads the weights.
  void finalize_pending_step();
  /// Writes the metrics of the steps that are final and measured, and prints their lines.
  void write_steps();
  void validate(int64_t step);
  void save();
  const std::string& newest_checkpoint() const;  // its directory; empty if there is none
  void save_timeline();
  std::string way_out() const;  // advice for a run whose values are not finite
  int64_t peak_bytes() const;   // in tensors on this rank's device, since the last reset
  void reset_peak_bytes() const;
  [[noreturn]] void stop_on_skipped(const StepResult& result);
  void print_banner() const;
  void finish();

  const Plan& plan_;
  const TrainingData& data_;
  Comm& comm_;
  TrainerOptions options_;
  const at::Device device_;
  Session session_;
  SnapshotSaver saver_;
  TrainState state_;
  std::shared_ptr<Output> output_;  // null on all ranks but rank 0
  StepResult last_;                 // of the last final step
  // Steps up to the last final one that were skipped, without another in between. It is 0 after a resume.
  int64_t skipped_in_row_ = 0;
  struct Unwritten {
    StepMetrics metrics;
    int64_t tokens = 0;          // of this step
    int64_t skipped_in_row = 0;  // up to this step
  };
  std::map<int64_t, Unwritten> unwritten_;  // by step
  std::optional<Clock::time_point> step_begin_;  // of the time of a step; empty if other work followed the last one
  double peak_flops_ = 0;           // of all ranks
};

}  // namespace orthant
