// Our own launcher for the ranks of one machine. It starts copies of a program with torchrun's environment, serves
// their store, and supervises them until the last one has ended.
//
// Growth with P ranks: P child processes, up to three store connections per rank, and O(P) system calls per check; it
// checks at least five times a second.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/store.h"

namespace orthant {

/// The first rank of a run that failed.
struct RankFailure {
  int rank = 0;
  std::string message;    // "rank 1 was killed by SIGKILL", and the rank's last activity if it is known
  int exit_code = 0;      // of the rank; 1 if a signal killed it
  bool reported = false;  // a rank has already reported it to the user
};

struct SpawnOptions {
  /// The executable, if argv[0] is only a name; "/proc/self/exe" is the current program. Empty: argv[0].
  std::string program;
  /// Threads of each rank (OMP_NUM_THREADS). 0: the cores of this machine divided by the ranks, at least 1.
  int threads_per_rank = 0;
  /// How long the other ranks may take to end after one failed, in seconds. Then they are killed.
  double grace_s = 5;
  /// Receives the ranks' store before they start.
  std::function<void(const Store& store)> prepare;
  /// Returns advice for the user to print below the message when a rank died, e.g. how to resume. It may be empty.
  std::function<std::string()> advice;
  /// Receives the message about a failed rank; the default prints it to stderr.
  std::function<void(const std::string& message)> report;
  /// If set, it is called when a rank has failed, all ranks have ended and no stop was requested. Returns the
  /// command line with which the ranks start again. If that is empty, they do not, and the failure is reported.
  std::function<std::vector<std::string>(const RankFailure& failure)> restart;
};

/// Number of cores on which this machine's ranks may run together. mpirun and srun may bind each rank to cores of its
/// own: the process then has fewer cores than its parent, and all ranks of the machine have equally many.
int cores_of_local_ranks(int local_ranks);

/// Starts `ranks` processes of argv and waits for all. Passes the first SIGINT or SIGTERM on to them, SIGUSR1 and
/// SIGHUP as SIGTERM, and Ctrl-Z (SIGTSTP). A second SIGINT or SIGTERM kills them. Returns 0 if all exited with 0, and
/// 130 after SIGINT. Otherwise returns the failed rank's exit code, or 1 if a signal killed it. Prints one message
/// about which rank died and how, unless a rank has already reported or the ranks start again, and a warning about a
/// stopped rank that no rank watches. The ranks must call die_with_parent() (launch/process.h), so that none outlives
/// this process.
int run_local_ranks(const std::vector<std::string>& argv, int ranks, const SpawnOptions& options = {});

}  // namespace orthant
