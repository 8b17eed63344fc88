// Reads the environment variables of torchrun, Open MPI, Hydra and Slurm, and chooses how the ranks connect.
#include "launch/launch.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/hash.h"
#include "base/text.h"
#include "launch/address.h"
#include "launch/secret.h"

namespace orthant {
namespace {

// Reads the variables of one launcher. Once one of them is set, all must be.
class Family {
 public:
  Family(const Environment& environment, std::string launcher, std::string first)
      : environment_(environment), launcher_(std::move(launcher)), first_(std::move(first)) {}

  int number(const std::string& name) const { return to_number(name, text({name})); }

  /// Returns the first variable that is set, of several names for the same value.
  std::string text(std::initializer_list<std::string> names) const {
    for (const auto& name : names) {
      if (auto value = environment_(name)) return *value;
    }
    const std::vector<std::string> all(names);
    throw ConfigError(
        fmt::format("{} is set but {} is not: {} sets both. Start all ranks with the launcher, or unset {}", first_,
                    join_or(all), launcher_, first_));
  }

  int number(std::initializer_list<std::string> names) const { return to_number(*names.begin(), text(names)); }

  template <typename Number = int>
  Number to_number(const std::string& name, const std::string& value) const {
    Number number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size()) {
      throw ConfigError(fmt::format("{} = \"{}\" in the environment is not a whole number", name, value));
    }
    return number;
  }

 private:
  const Environment& environment_;
  const std::string launcher_, first_;
};

void check_ranges(const Launch& launch) {
  if (launch.world_size < 1 || launch.rank < 0 || launch.rank >= launch.world_size) {
    throw ConfigError(fmt::format(
        "the rank must be at least 0 and below the world size, but the rank is {} and the world size {} (set by {})",
        launch.rank, launch.world_size, launch.launcher));
  }
  if (launch.local_rank < 0 || launch.local_rank >= launch.local_size || launch.local_size > launch.world_size) {
    throw ConfigError(
        fmt::format("the local rank must be below the local size, and the local size at most the world size, but the "
                    "local rank is {}, "
                    "the local size {} and the world size {} (set by {})",
                    launch.local_rank, launch.local_size, launch.world_size, launch.launcher));
  }
}

void take_master(Launch& launch, const Family& family) {
  launch.address = family.text({"MASTER_ADDR"});
  // An IPv6 address may be written in brackets, as in a URL. The resolver accepts it only without them.
  if (launch.address.starts_with('[') && launch.address.ends_with(']'))
    launch.address = launch.address.substr(1, launch.address.size() - 2);
  launch.port = family.number("MASTER_PORT");
  if (launch.port < 1 || launch.port > 65535) {
    throw ConfigError(fmt::format("MASTER_PORT = {} is not a port; choose one from 1024 to 65535", launch.port));
  }
}

Launch from_torchrun(const Environment& environment) {
  const Family family(environment, "torchrun", environment("RANK") ? "RANK" : "WORLD_SIZE");
  const auto run_id = environment("TORCHELASTIC_RUN_ID");
  // Either alone may come from elsewhere: a user's --rdzv-id, or the environment of a rank that starts torchrun.
  const auto own_run_id = run_id == "orthant" ? environment(kRunId) : std::nullopt;
  Launch launch{.launcher = own_run_id ? "orthant" : run_id ? "torchrun" : "environment"};
  launch.rank = family.number("RANK");
  launch.world_size = family.number("WORLD_SIZE");
  if (launch.world_size > 1) take_master(launch, family);
  if (environment("LOCAL_RANK") || environment("LOCAL_WORLD_SIZE")) {
    const Family local(environment, "torchrun", environment("LOCAL_RANK") ? "LOCAL_RANK" : "LOCAL_WORLD_SIZE");
    launch.local_rank = local.number("LOCAL_RANK");
    launch.local_size = local.number("LOCAL_WORLD_SIZE");
  } else if (is_loopback(launch.address)) {
    launch.local_rank = launch.rank, launch.local_size = launch.world_size;
  }
  if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True")
    launch.store_kind = own_run_id ? StoreKind::kServedByLauncher : StoreKind::kServedByTorchrun;
  // "none" is torchrun's default and equal for every run, so it identifies no run.
  if (run_id && run_id != "none") launch.run_id = fmt::format("torchrun {}", *run_id);
  if (own_run_id) launch.run_id = fmt::format("orthant {}", *own_run_id);
  if (environment("TORCHELASTIC_MAX_RESTARTS")) launch.max_restarts = family.number("TORCHELASTIC_MAX_RESTARTS");
  return launch;
}

// Returns the number of tasks on a node. The list "8(x2),4" means 8 tasks on nodes 0 and 1, and 4 on node 2.
int slurm_tasks_on(const Family& family, const std::string& list, int node) {
  int first = 0;
  for (const auto& entry : split(list, ',')) {
    const size_t open = entry.find("(x");
    const int tasks = family.to_number("SLURM_STEP_TASKS_PER_NODE", entry.substr(0, open));
    const int nodes = open == std::string::npos ? 1
                                                : family.to_number("SLURM_STEP_TASKS_PER_NODE",
                                                                   entry.substr(open + 2, entry.size() - open - 3));
    first += nodes;
    if (node < first) return tasks;
  }
  throw ConfigError(
      fmt::format("SLURM_NODEID = {} must be below the number of nodes in SLURM_STEP_TASKS_PER_NODE = {}", node, list));
}

void take_slurm_locals(Launch& launch, const Family& family) {
  launch.local_rank = family.number("SLURM_LOCALID");
  launch.local_size = slurm_tasks_on(family, family.text({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}),
                                     family.number("SLURM_NODEID"));
}

Launch from_openmpi(const Environment& environment) {
  const Family family(environment, "Open MPI's mpirun", "OMPI_COMM_WORLD_RANK");
  return {.launcher = "openmpi",
          .rank = family.number("OMPI_COMM_WORLD_RANK"),
          .world_size = family.number("OMPI_COMM_WORLD_SIZE"),
          .local_rank = family.number("OMPI_COMM_WORLD_LOCAL_RANK"),
          .local_size = family.number("OMPI_COMM_WORLD_LOCAL_SIZE")};
}

Launch from_hydra(const Environment& environment) {
  const Family family(environment, "mpirun (Hydra)", "PMI_RANK");
  Launch launch{.launcher = "hydra", .rank = family.number("PMI_RANK"), .world_size = family.number("PMI_SIZE")};
  if (!environment("MPI_LOCALRANKID") && environment("SLURM_LOCALID")) {  // srun --mpi=pmi2
    take_slurm_locals(launch, family);
  } else {
    launch.local_rank = family.number("MPI_LOCALRANKID");
    launch.local_size = family.number("MPI_LOCALNRANKS");
  }
  return launch;
}

Launch from_slurm(const Environment& environment) {
  const Family family(environment, "srun", "SLURM_PROCID");
  Launch launch{.launcher = "slurm",
                .rank = family.number("SLURM_PROCID"),
                .world_size = family.number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"})};
  take_slurm_locals(launch, family);
  return launch;
}

// The name that Open MPI or Slurm gives to the job, the same on all its ranks; empty if there is none.
std::string job_id(const Launch& launch, const Environment& environment, const Family& family) {
  if (launch.launcher == "openmpi") return environment("PMIX_NAMESPACE").value_or("");
  const auto job = environment("SLURM_JOB_ID");
  if (launch.launcher == "slurm" && job) {
    return fmt::format("{}.{}.{}", *job, family.text({"SLURM_STEP_ID"}),
                       environment("SLURM_RESTART_COUNT").value_or("0"));
  }
  return "";
}

// Returns the port of a run within a Slurm job, from 15000 to 31380. Programs of the kernel's choice use ports from
// 32768. Steps of one job get consecutive ports, so they never collide. Jobs with consecutive ids get ports far apart:
// the golden section spreads the multiples of its product with the number of ports evenly.
int slurm_port(uint64_t job, uint64_t number_in_job) {
  constexpr uint64_t kFirst = 15000, kPorts = 16381, kGoldenSection = 10124;  // kPorts is a prime
  return static_cast<int>(kFirst + (job % kPorts * kGoldenSection + number_in_job % kPorts) % kPorts);
}

// MPI and Slurm name no rendezvous. The order of choice is: MASTER_ADDR and MASTER_PORT; a file, if all ranks are on
// one machine; the first host that Slurm lists, with a port derived from the job and the step. mpirun starts a step on
// some hosts only, so its ranks take the host list of the job and the name that Open MPI gives to the run.
void choose_store(Launch& launch, const Environment& environment, const std::string& parent) {
  const Family family(environment, launch.launcher, "MASTER_ADDR");
  std::string key = job_id(launch, environment, family);
  if (!key.empty()) launch.run_id = fmt::format("{} {}", launch.launcher, key);
  if (environment("MASTER_ADDR")) return take_master(launch, family);
  const auto job = environment("SLURM_JOB_ID");
  if (launch.local_size == launch.world_size) {
    if (key.empty()) key = parent;
    std::replace(key.begin(), key.end(), '/', '_');
    launch.store_kind = StoreKind::kFile;
    launch.path = fmt::format("{}/orthant-{}-{}.store", environment("TMPDIR").value_or("/tmp"), launch.launcher, key);
    return;
  }
  const bool is_step = launch.launcher == "slurm" || (launch.launcher == "hydra" && !environment("MPI_LOCALRANKID"));
  const auto step_nodes = is_step ? environment("SLURM_STEP_NODELIST") : std::nullopt;
  const auto nodes = step_nodes ? step_nodes : environment("SLURM_JOB_NODELIST");
  if (!nodes || !job) {
    throw ConfigError(
        fmt::format("{} started ranks on several machines but gave them no address to connect to: set MASTER_ADDR to "
                    "the host of rank 0 and MASTER_PORT to a free port there, for all ranks (mpirun -x or -genv)",
                    launch.launcher));
  }
  launch.address = slurm_hosts(*nodes).front();
  const uint64_t number_in_job =
      is_step ? family.to_number<uint64_t>("SLURM_STEP_ID", family.text({"SLURM_STEP_ID"})) : xxh3(launch.run_id);
  launch.port = slurm_port(family.to_number<uint64_t>("SLURM_JOB_ID", *job), number_in_job);
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<Launch> detect_launch(const Environment& environment, const std::string& parent) {
  Launch launch;
  const std::string job_name = environment("SLURM_JOB_NAME").value_or("");
  if (environment("RANK") || environment("WORLD_SIZE")) {
    launch = from_torchrun(environment);
  } else if (environment("OMPI_COMM_WORLD_RANK")) {
    launch = from_openmpi(environment);
  } else if (environment("PMI_RANK")) {
    launch = from_hydra(environment);
  } else if (environment("SLURM_PROCID") && environment("SLURM_STEP_ID") && job_name != "bash" &&
             job_name != "interactive") {
    launch = from_slurm(environment);
  } else {
    return std::nullopt;
  }
  check_ranges(launch);
  const bool torchrun_like = environment("RANK").has_value();
  if (!torchrun_like && launch.world_size > 1) choose_store(launch, environment, parent);
  launch.interface_name = environment("GLOO_SOCKET_IFNAME").value_or("");
  if (launch.world_size > 1) launch.secret = read_secret(environment);
  return launch;
}

bool write_error_file(const Environment& environment, const std::string& type, const std::string& message) {
  const auto path = environment("TORCHELASTIC_ERROR_FILE");
  if (!path) return false;
  const nlohmann::json record = {
      {"message",
       {{"message", fmt::format("{}: {}", type, message)},
        {"extraInfo", {{"py_callstack", message}, {"timestamp", fmt::format("{}", std::time(nullptr))}}}}}};
  std::ofstream file(*path);
  file << record.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << "\n";
  file.flush();
  return file.good();
}

}  // namespace orthant
