// Steps shared by the commands that take a run file: read it, open its data, find its checkpoint.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "app/commands.h"
#include "config/config.h"
#include "data/folder_lock.h"
#include "launch/rendezvous.h"
#include "plan/plan.h"
#include "runtime/machine_memory.h"
#include "runtime/training_data.h"

namespace orthant {

/// Reads and validates the run file with overrides, and the model's sizes from model.from if it is set. `launched`:
/// number of ranks that a launcher started, which becomes run.ranks; 0: no launcher. Throws ConfigError, also if the
/// run file or the command line contradicts model.from.
Config load_run(const RunFileArguments& arguments, int launched = 0);

/// run.threads_per_rank if set, else the cores of this machine / its ranks, at least 1.
int threads_per_rank(const Config& config, int local_ranks);

/// A callback that draws a progress bar on stderr, in bytes or the given unit.
std::function<void(int64_t done, int64_t total)> make_progress_callback(const std::string& label,
                                                                        const std::string& unit = "");

/// Throws ConfigError, with the keys to change, if the plan needs more memory than the machine has.
void require_memory(const MemoryNeed& need, const Config& config);

/// Opens the data of a run. ConfigError if validation.freq > 0 but no document is held out.
TrainingData open_run_data(const Config& config, const TextProgress& progress, FileReadings* readings = nullptr);

/// Gives the launcher's readings to the ranks of this host, so that none of them reads the files again.
void share_readings(const Store& store, const FileReadings& readings);

/// Collective over all ranks: rank 0 tokenizes while the others wait. Then one rank of each host reads the files,
/// unless a launcher has shared its readings, and the others of the host take its results. Returns when all ranks have
/// opened their data, up to 24 hours later; ConfigError if a rank's tokens are not those of rank 0. The caller must run
/// a Watch, so that no rank waits for a dead one.
TrainingData open_training_data_together(const Config& config, const Rendezvous& rendezvous);

/// The checkpoint from which --resume continues; empty if there is none yet, so that one command starts a run and
/// continues it. DataError if the link to it is a directory.
std::string checkpoint_to_resume(const Config& config);

/// The Hugging Face directory that a user names: itself, or the newest checkpoint of a run folder. ConfigError if it is
/// neither.
std::string model_directory(const std::string& directory);

/// Warns on stderr of keys of a model's config.json that are not read. `path` is that file or its directory.
void print_unknown_keys(const std::string& path);

/// Takes the lock of the run's folder. Throws ConfigError if another run writes to it.
std::unique_ptr<FolderLock> lock_run_folder(const Config& config);

/// Empties the folder for a new run: moves the files of an earlier run to DUMP/earlier/N and prints a note.
void archive_earlier_run(const Config& config);

/// Advice after a failure: the checkpoint to continue from and the command.
std::string advice_after_failure(const Config& config, const std::string& resume_command);

}  // namespace orthant
