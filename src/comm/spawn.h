// Our own launcher for the ranks of one machine: starts copies of a program with torchrun's environment, serves their
// store, and looks after them until the last has ended.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace orthant {

struct SpawnOptions {
  /// The executable, where argv[0] is only a name; "/proc/self/exe" is this one. Empty: argv[0].
  std::string program;
  /// Threads of each rank (OMP_NUM_THREADS); 0: the cores of this machine over the ranks, at least 1.
  int threads_per_rank = 0;
  /// How long the other ranks may take to end by themselves after one failed, before they are killed.
  double grace_s = 5;
  /// What to tell the user under the message when a rank died, e.g. how to resume. May be empty.
  std::function<std::string()> advice;
  /// Where that message goes; stderr by default.
  std::function<void(const std::string& message)> report;
};

/// Number of cores on which this process may run.
int available_cores();
/// Number of cores on which this machine's ranks may run together. A launcher that binds each rank to cores of its own
/// (mpirun, srun) leaves this process fewer cores than its parent has; the ranks then have that many each.
int cores_of_local_ranks(int local_ranks);

/// Starts `ranks` processes of argv and waits for all.
/// The first SIGINT or SIGTERM is handed on to them, SIGUSR1 and SIGHUP as SIGTERM; a second SIGINT or SIGTERM kills
/// them. Returns 0 when all ended with 0; 130 after SIGINT; else the failed rank's exit code, or 1 when a signal killed
/// it. One message tells which rank died and how, unless a rank has told already. The ranks call die_with_parent()
/// (comm/process.h), so none outlives this process.
int run_local_ranks(const std::vector<std::string>& argv, int ranks, const SpawnOptions& options = {});

}  // namespace orthant
