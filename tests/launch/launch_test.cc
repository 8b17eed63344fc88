// Detection of the launcher from the environment, by tables of variables, and the error file for torchrun. Detection is
// a pure function of the variables.
#include "launch/launch.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.h"
#include "tests/support/says.h"

namespace orthant::launch_test {
namespace {

using Table = std::map<std::string, std::string>;

Environment environment(Table table) {
  return [table = std::move(table)](const std::string& name) -> std::optional<std::string> {
    const auto found = table.find(name);
    return found == table.end() ? std::nullopt : std::optional(found->second);
  };
}

Table with(Table table, const Table& more) {
  for (const auto& [name, value] : more) table[name] = value;
  return table;
}
Table without(Table table, const std::string& name) {
  table.erase(name);
  return table;
}

const Table kTorchrun = {{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "none"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_MAX_RESTARTS", "2"}};
const Table kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "27/1"}};
const Table kHydra = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Table kSlurm = {{"SLURM_PROCID", "9"},          {"SLURM_STEP_ID", "3"},
                      {"SLURM_STEP_NUM_TASKS", "20"}, {"SLURM_LOCALID", "1"},
                      {"SLURM_NODEID", "1"},          {"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"},
                      {"SLURM_JOB_ID", "1234567"},    {"SLURM_STEP_NODELIST", "gpu[07-09]"}};

Launch detect(const Table& table) { return detect_launch(environment(table), "77-12").value(); }

std::string refusal(const Table& table) {
  try {
    (void)detect_launch(environment(table), "77-12");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Launch, NoLauncherIsDetected) {
  EXPECT_FALSE(detect_launch(environment({}), "77-12"));
  EXPECT_FALSE(detect_launch(environment({{"SLURM_PROCID", "0"}}), "77-12"));  // a batch script, not started by srun
  EXPECT_FALSE(detect_launch(environment(with(kSlurm, {{"SLURM_JOB_NAME", "bash"}})), "77-12"));
  EXPECT_FALSE(detect_launch(environment(with(kSlurm, {{"SLURM_JOB_NAME", "interactive"}})), "77-12"));
}

TEST(Launch, Torchrun) {
  const Launch launch = detect(kTorchrun);
  EXPECT_EQ(launch.launcher, "torchrun");
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world_size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.store_kind, StoreKind::kServedByTorchrun);
  EXPECT_EQ(launch.address, "node0");
  EXPECT_EQ(launch.port, 29500);
  EXPECT_EQ(launch.max_restarts, 2);
  // The value must be spelled exactly. Our own launcher identifies itself by its run id.
  EXPECT_EQ(detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "true"}})).store_kind,
            StoreKind::kServedByRankZero);
  const Launch ours = detect(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "orthant"}, {"ORTHANT_RUN_ID", "77"}}));
  EXPECT_EQ(ours.launcher, "orthant");
  EXPECT_EQ(ours.store_kind, StoreKind::kServedByLauncher);
  // A user may give torchrun any --rdzv-id.
  const Launch named = detect(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "orthant"}}));
  EXPECT_EQ(named.launcher, "torchrun");
  EXPECT_EQ(named.store_kind, StoreKind::kServedByTorchrun);
  EXPECT_EQ(named.run_id, "torchrun orthant");
}

TEST(Launch, SetByHand) {
  const Launch here =
      detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "3000"}});
  EXPECT_EQ(here.launcher, "environment");
  EXPECT_EQ(here.store_kind, StoreKind::kServedByRankZero);
  EXPECT_EQ(here.local_rank, 1);
  EXPECT_EQ(here.local_size, 2);
  for (const char* address : {"[::1]", "::1"}) {
    const Launch v6 = detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", address}, {"MASTER_PORT", "3000"}});
    EXPECT_EQ(v6.address, "::1");
    EXPECT_EQ(v6.local_size, 2);
  }
  const Launch far = detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "3000"}});
  EXPECT_EQ(far.local_rank, 0);
  EXPECT_EQ(far.local_size, 1);
  EXPECT_EQ(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1);  // a single rank needs no rendezvous
}

TEST(Launch, OpenMpiOnOneMachineMeetsInAFile) {
  const Launch launch = detect(with(kOpenMpi, {{"TMPDIR", "/scratch"}}));
  EXPECT_EQ(launch.launcher, "openmpi");
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.store_kind, StoreKind::kFile);
  EXPECT_EQ(launch.path, "/scratch/orthant-openmpi-27_1.store");
  // For several machines, the user must set the address.
  const Table far = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_TRUE(says(refusal(far), {"openmpi started ranks on several machines", "MASTER_ADDR", "MASTER_PORT"}));
  EXPECT_EQ(detect(with(far, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "4000"}})).address, "a");
}

// Hydra provides no name of the job, so the rendezvous file is named after the parent process.
TEST(Launch, HydraStoreIsNamedAfterTheParent) {
  const Launch launch = detect(kHydra);
  EXPECT_EQ(launch.launcher, "hydra");
  EXPECT_EQ(launch.path, "/tmp/orthant-hydra-77-12.store");
  const Launch pmi2 = detect(with(without(kHydra, "MPI_LOCALRANKID"),
                                  {{"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_TASKS_PER_NODE", "2"}}));
  EXPECT_EQ(pmi2.local_size, 2);
}

TEST(Launch, SlurmMeetsOnItsFirstHost) {
  const Launch launch = detect(kSlurm);
  EXPECT_EQ(launch.launcher, "slurm");
  EXPECT_EQ(launch.rank, 9);
  EXPECT_EQ(launch.world_size, 20);
  EXPECT_EQ(launch.local_size, 8);
  EXPECT_EQ(launch.address, "gpu07");
  EXPECT_EQ(launch.port, 15000 + (1234567 % 16381 * 10124 + 3) % 16381);
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_NODEID", "2"}, {"SLURM_PROCID", "17"}})).local_size, 4);
  const Launch one = detect(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2"},
                                          {"SLURM_STEP_NUM_TASKS", "2"},
                                          {"SLURM_PROCID", "1"},
                                          {"SLURM_NODEID", "0"}}));
  EXPECT_EQ(one.path, "/tmp/orthant-slurm-1234567.3.0.store");
}

// Steps of one job that run at the same time, and jobs that were submitted one after another, have ports of their own
// on a host that they share.
TEST(Launch, SlurmPortsDiffer) {
  std::set<int> ports;
  for (int job = 1234567; job < 1234567 + 64; ++job) {
    for (int step = 0; step < 100; ++step) {
      const int port =
          detect(with(kSlurm, {{"SLURM_JOB_ID", std::to_string(job)}, {"SLURM_STEP_ID", std::to_string(step)}})).port;
      EXPECT_TRUE(port >= 15000 && port < 32768) << port;
      EXPECT_TRUE(ports.insert(port).second) << "job " << job << " step " << step;
    }
  }
  EXPECT_EQ(ports.size(), 6400u);
  const Table largest = {{"SLURM_JOB_ID", "4294967295"}, {"SLURM_STEP_ID", "4294967290"}};
  EXPECT_LT(detect(with(kSlurm, largest)).port, 32768);
  EXPECT_TRUE(says(refusal(with(kSlurm, {{"SLURM_STEP_ID", "batch"}})), {"SLURM_STEP_ID = \"batch\""}));
}

// mpirun starts a step on the hosts other than its own, so neither the number nor the hosts of a step name its run.
TEST(Launch, MpirunInASlurmJobTakesTheHostsOfTheJob) {
  const Table far = with(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}}),
                         {{"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NODELIST", "gpu[07-09]"}});
  const Table there = with(far, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", "gpu[08-09]"}});
  EXPECT_EQ(detect(far).address, "gpu07");
  EXPECT_EQ(detect(there).address, "gpu07");
  EXPECT_EQ(detect(there).port, detect(far).port);
  EXPECT_NE(detect(with(far, {{"PMIX_NAMESPACE", "28/1"}})).port, detect(far).port);
}

TEST(Launch, SecretIsReadForSeveralRanks) {
  const Table secret = {{"ORTHANT_SECRET", "0123456789abcdef"}};
  for (const Table& table : {kTorchrun, kOpenMpi, kHydra, kSlurm}) {
    EXPECT_EQ(detect(with(table, secret)).secret, "0123456789abcdef");
    EXPECT_EQ(detect(table).secret, "");
    EXPECT_TRUE(says(refusal(with(table, {{"ORTHANT_SECRET", "short"}})), {"at least 16 characters"}));
  }
}

TEST(Launch, AnOuterLauncherReachesThrough) {
  // mpirun within a batch job inherits SLURM_PROCID=0 in every rank; torchrun may be started by srun or mpirun.
  EXPECT_EQ(detect(with(kOpenMpi, kSlurm)).launcher, "openmpi");
  EXPECT_EQ(detect(with(kHydra, kSlurm)).launcher, "hydra");
  EXPECT_EQ(detect(with(with(kTorchrun, kSlurm), kOpenMpi)).launcher, "torchrun");
}

TEST(Launch, TheRunIdIsTheLaunchers) {
  EXPECT_EQ(detect(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "a1"}})).run_id, "torchrun a1");
  EXPECT_EQ(detect(kTorchrun).run_id, "");  // "none" is the value of every run without --rdzv-id
  EXPECT_EQ(detect(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "orthant"}, {"ORTHANT_RUN_ID", "77"}})).run_id,
            "orthant 77");
  EXPECT_EQ(detect(kOpenMpi).run_id, "openmpi 27/1");
  EXPECT_EQ(detect(with(kOpenMpi, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "4000"}})).run_id, "openmpi 27/1");
  EXPECT_EQ(detect(without(kOpenMpi, "PMIX_NAMESPACE")).run_id, "");
  EXPECT_EQ(detect(kHydra).run_id, "");  // the parent process would differ if a script started the rank
  EXPECT_EQ(detect(kSlurm).run_id, "slurm 1234567.3.0");
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_RESTART_COUNT", "1"}})).run_id, "slurm 1234567.3.1");
  EXPECT_EQ(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).run_id, "");
}

// A launcher sets all of its variables. If one is missing, the error names it.
TEST(Launch, MissingVariableIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_TRUE(says(refusal(without(kTorchrun, name)), {std::string(name) + " is not: torchrun sets both"}));
  }
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    EXPECT_TRUE(
        says(refusal(without(kOpenMpi, name)), {"OMPI_COMM_WORLD_RANK is set but ", std::string(name) + " is not"}));
  }
  for (const char* name : {"PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}) {
    EXPECT_TRUE(says(refusal(without(kHydra, name)), {"PMI_RANK is set but ", std::string(name) + " is not"}));
  }
  for (const char* name : {"SLURM_LOCALID", "SLURM_NODEID"}) {
    EXPECT_TRUE(says(refusal(without(kSlurm, name)), {"SLURM_PROCID is set but ", std::string(name) + " is not"}));
  }
  EXPECT_TRUE(
      says(refusal(without(kSlurm, "SLURM_STEP_NUM_TASKS")), {"SLURM_STEP_NUM_TASKS, SLURM_NTASKS or SLURM_NPROCS"}));
}

TEST(Launch, NumbersThatDoNotFit) {
  EXPECT_TRUE(says(refusal(with(kTorchrun, {{"RANK", "8"}})), {"the rank is 8 and the world size 8"}));
  EXPECT_TRUE(says(refusal(with(kTorchrun, {{"RANK", "-1"}})), {"the rank is -1 and the world size 8"}));
  EXPECT_TRUE(says(refusal(with(kTorchrun, {{"LOCAL_RANK", "4"}})), {"the local rank is 4, the local size 4"}));
  EXPECT_TRUE(says(refusal(with(kTorchrun, {{"RANK", "two"}})), {"RANK = \"two\"", "not a whole number"}));
  EXPECT_TRUE(says(refusal(with(kTorchrun, {{"MASTER_PORT", "70000"}})), {"MASTER_PORT = 70000"}));
  EXPECT_TRUE(says(refusal(with(kTorchrun, {{"WORLD_SIZE", "99999999999"}})), {"WORLD_SIZE"}));
  EXPECT_TRUE(
      says(refusal(with(kSlurm, {{"SLURM_NODEID", "3"}})), {"SLURM_NODEID = 3 must be below the number of nodes"}));
}

TEST(Launch, SlurmHosts) {
  using Hosts = std::vector<std::string>;
  EXPECT_EQ(slurm_hosts("login"), Hosts{"login"});
  EXPECT_EQ(slurm_hosts("a,b c"), (Hosts{"a", "b", "c"}));
  EXPECT_EQ(slurm_hosts("pre[1-3,7,010-012]post,x"),
            (Hosts{"pre1post", "pre2post", "pre3post", "pre7post", "pre010post", "pre011post", "pre012post", "x"}));
  EXPECT_EQ(slurm_hosts("r[1-2]n[0-1]"), (Hosts{"r1n0", "r1n1", "r2n0", "r2n1"}));
  for (const char* bad : {"", "a[1-2", "a]1[", "a[2-1]", "a[]", "a[x]", "a[[1]]", "a[1-9999999999]", "a[1-99999999]"}) {
    EXPECT_THROW(slurm_hosts(bad), ConfigError) << bad;
  }
}

TEST(Launch, ErrorFileForTorchrun) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("orthant-error-{}.json", getpid());
  EXPECT_FALSE(write_error_file(environment({}), "CommError", "x"));
  EXPECT_FALSE(write_error_file(environment({{"TORCHELASTIC_ERROR_FILE", "/nonexistent/x.json"}}), "CommError", "x"));
  ASSERT_TRUE(
      write_error_file(environment({{"TORCHELASTIC_ERROR_FILE", path.string()}}), "CommError", "rank \"1\"\nis dead"));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["message"]["message"], "CommError: rank \"1\"\nis dead");
  EXPECT_TRUE(json["message"]["extraInfo"]["timestamp"].is_string());
  EXPECT_TRUE(json["message"]["extraInfo"]["py_callstack"].is_string());
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace orthant::launch_test
