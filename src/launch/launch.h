// Launch: rank, world size and rendezvous of this process, as its launcher states them in the environment. The
// functions read environment variables and the file of the secret; only write_error_file() writes anything. Costs do
// not depend on the number of ranks, except that Slurm's host list is expanded in O(hosts).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// The environment variable in which our own launcher gives its ranks the name of the run.
inline constexpr const char* kRunId = "ORTHANT_RUN_ID";

/// Looks up an environment variable. Tests pass a table instead of the real environment.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
/// Reads the environment of this process. A variable that is set but empty counts as not set.
std::optional<std::string> process_environment(const std::string& name);

/// How ranks find each other: through a store that our own launcher serves, through one that torchrun serves and keeps
/// when it restarts the ranks, through one that rank 0 serves, or through a file on one machine.
enum class StoreKind { kServedByLauncher, kServedByTorchrun, kServedByRankZero, kFile };

struct Launch {
  std::string launcher;  // "orthant", "torchrun", "environment", "openmpi", "hydra", "slurm"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
  StoreKind store_kind = StoreKind::kServedByRankZero;
  int max_restarts = 0;  // how often torchrun starts the ranks again after a failure
  /// The launcher's name for this run: equal on all its ranks, and different for every other run. Empty if the launcher
  /// gives none.
  std::string run_id;
  std::string address;  // host of the store
  int port = 0;
  std::string path;  // file of the store
  /// The secret of the run, which authenticates its ranks on a store over TCP; empty if the rank has none.
  std::string secret;
  /// GLOO_SOCKET_IFNAME: the network interface between ranks, needed if the default is wrong.
  std::string interface_name;
};

/// Returns the launch of this process; empty if no launcher started it. Launchers are tried in this order, because the
/// variables of an outer launcher also reach the ranks of an inner one: torchrun (or RANK and WORLD_SIZE set by hand),
/// Open MPI, Hydra, Slurm. Throws ConfigError, with the variable's name, if a launcher's variables are incomplete, are
/// not numbers or contradict each other. `parent` (see parent_identity()) names a run that has no other name.
std::optional<Launch> detect_launch(const Environment& environment, const std::string& parent);

/// Returns the hosts of a Slurm node list such as "gpu[1-3,07]-ib,login", in order. Throws ConfigError if it is
/// malformed.
std::vector<std::string> slurm_hosts(const std::string& list);

/// Writes why this rank failed to the file that torchrun names in TORCHELASTIC_ERROR_FILE. Torchrun prints it as the
/// root cause. Returns whether a file was written; failures are ignored.
bool write_error_file(const Environment& environment, const std::string& type, const std::string& message);

}  // namespace orthant
