// What the commands that take a run file have in common: reading it, opening its data, finding its checkpoint.
#pragma once

#include "app/commands.h"
#include "comm/rendezvous.h"
#include "plan/config.h"
#include "plan/plan.h"
#include "runtime/machine_memory.h"
#include "runtime/training_data.h"

#include <functional>
#include <string>

namespace orthant {

/// The run file with overrides, and the model's sizes from model.from where it is set; checked. Throws ConfigError,
/// also where the run file or the command line contradicts model.from. `launched`: the ranks that a launcher has
/// started, which run.ranks then is.
Config load_run(const RunFileArguments& arguments, int launched = 0);

/// run.threads_per_rank, or the cores of this machine over its ranks, at least 1.
int threads_per_rank(const Config& config, int local_ranks);

/// A progress bar on stderr, told what is done and what there is to do: bytes, or so many of a unit.
std::function<void(int64_t done, int64_t total)> shown_progress(const std::string& label, const std::string& unit = "");

/// What planning must know, without training a tokenizer or tokenizing: "train:N" will have N pieces. ConfigError where
/// data.path names nothing.
RunFacts facts_before_data(const Config& config, int ranks);

/// ConfigError with the keys to change where the plan needs more memory than the machine has.
void require_memory(const MemoryNeed& need, const Config& config);

/// The data of a run that validates if it is asked to: ConfigError where validation.freq finds nothing held out.
TrainingData open_run_data(const Config& config, const TextProgress& progress);

/// The planned schedule as a picture, headed by its name.
std::string planned_svg(const Plan& plan);

/// All ranks call it: the first one tokenizes what has not been, the others wait and find it done. Returns when all
/// have opened their data, however long that takes; a Watch must see to it that nobody waits for the dead.
TrainingData open_training_data_together(const Config& config, const Rendezvous& meeting);

/// The checkpoint that --resume goes on from. ConfigError when there is none.
std::string checkpoint_to_resume(const Config& config);

/// A fresh run starts in an empty folder: moves what an earlier run left there to DUMP/earlier/N and says so.
void set_aside_earlier_run(const Config& config);

/// How to go on after a failure: from which checkpoint, with which command.
std::string advice_after_failure(const Config& config, const std::string& resume_command);

}  // namespace orthant
