// Launch: what the environment of this process says about the run it belongs to. Pure: it reads variables and starts
// nothing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// The environment variable in which our own launcher gives its ranks the name of the run.
inline constexpr const char* kRunId = "ORTHANT_RUN_ID";

/// Looks up an environment variable; tests pass a table.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
/// The environment of this process; a variable that is set but empty counts as not set.
std::optional<std::string> process_environment(const std::string& name);

/// How ranks meet: as clients of a store that the launcher serves, or that rank 0 serves, or in a file of one machine.
enum class Meeting { kLauncherServes, kRankZeroServes, kFile };

struct Launch {
  std::string launcher;  // "orthant", "torchrun", "environment", "openmpi", "hydra", "slurm"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
  Meeting meeting = Meeting::kRankZeroServes;
  int attempt = 0;      // torchrun's restart count
  /// The launcher's name for this run: equal on all its ranks, and different for every other run. Empty if the launcher
  /// gives none.
  std::string run_id;
  std::string address;  // of the store
  int port = 0;
  std::string path;            // of the store's file
  std::string interface_name;  // GLOO_SOCKET_IFNAME: the network the ranks talk over, where the default is wrong
};

/// Who launched this process, if anybody: torchrun (or RANK and WORLD_SIZE set by hand), Open MPI, Hydra, Slurm, in
/// this order, because an outer launcher's variables reach through to the ranks of an inner one. ConfigError when a
/// launcher's variables are there in part, are no numbers, or do not fit together: it names the variable. `parent`
/// names the launcher's process, as the key of a run that has no other name (see parent_key()).
std::optional<Launch> detect_launch(const Environment& environment, const std::string& parent);

/// The hosts of a Slurm node list such as "gpu[1-3,07]-ib,login" in order. ConfigError when it is malformed.
std::vector<std::string> slurm_hosts(const std::string& list);

/// Tells torchrun why this rank failed, where it asked for it (TORCHELASTIC_ERROR_FILE): it prints that as the root
/// cause. Best effort, returns whether a file was written.
bool write_error_file(const Environment& environment, const std::string& type, const std::string& message);

}  // namespace orthant
