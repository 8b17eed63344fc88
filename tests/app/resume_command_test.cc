// The command that resumes a run contains the launcher that the run was started with.
#include "app/resume_command.h"

#include <gtest/gtest.h>

#include <map>

namespace orthant::resume_command_test {
namespace {

using Words = std::vector<std::string>;

const Words kCommand = {"build/orthant", "train", "run.toml", "training.steps=20"};
const Words kShell = {"-bash"}, kSystem = {"/sbin/init"};

Launch launch(const std::string& launcher, int ranks = 4, int local_ranks = 4) {
  return {.launcher = launcher, .world_size = ranks, .local_size = local_ranks};
}

std::string resumed(const std::optional<Launch>& by, const std::vector<Words>& ancestors,
                    const Words& command = kCommand, const std::map<std::string, std::string>& variables = {}) {
  return resume_command(command, by, ancestors, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

Words with(Words launcher) {
  launcher.insert(launcher.end(), kCommand.begin(), kCommand.end());
  return launcher;
}

TEST(ResumeCommand, WithoutALauncher) {
  EXPECT_EQ(resumed(std::nullopt, {kShell}), "build/orthant train run.toml training.steps=20 --resume");
  EXPECT_EQ(resumed(launch("orthant"), {kCommand, kShell}), "build/orthant train run.toml training.steps=20 --resume");
  EXPECT_EQ(resumed(std::nullopt, {}, {"orthant", "train", "a run.toml", "--resume"}),
            "orthant train 'a run.toml' --resume");
}

TEST(ResumeCommand, UnderTorchrun) {
  const Words script = with({"/venv/bin/python3", "/venv/bin/torchrun", "--no-python", "--nproc-per-node", "4"});
  EXPECT_EQ(resumed(launch("torchrun"), {script, kShell, kSystem}),
            "/venv/bin/torchrun --no-python --nproc-per-node 4 "
            "build/orthant train run.toml training.steps=20 --resume");
  const Words module = with({"python3", "-m", "torch.distributed.run", "--no-python"});
  EXPECT_EQ(resumed(launch("torchrun"), {module}),
            "python3 -m torch.distributed.run --no-python build/orthant train run.toml training.steps=20 --resume");
}

TEST(ResumeCommand, UnderTorchrunOnSeveralHosts) {
  const std::string line = "torchrun --no-python --nnodes 2 build/orthant train run.toml training.steps=20 --resume";
  EXPECT_EQ(resumed(launch("torchrun", 8, 4), {with({"python3", "torchrun", "--no-python", "--nnodes", "2"})}),
            line + "\n  (run it on every host)");
  const std::string ranked = resumed(launch("torchrun", 8, 4), {with({"python3", "torchrun", "--node-rank=1"})});
  EXPECT_TRUE(ranked.ends_with("--resume\n  (run it on every host, each with its own --node-rank)")) << ranked;
}

TEST(ResumeCommand, UnderMpirun) {
  const std::string line = "mpirun -np 4 build/orthant train run.toml training.steps=20 --resume";
  EXPECT_EQ(resumed(launch("openmpi"), {with({"mpirun", "-np", "4"}), kShell}), line);
  const Words proxy = {"/usr/bin/hydra_pmi_proxy", "--control-port", "node0:4000"};
  EXPECT_EQ(resumed(launch("hydra"), {proxy, with({"mpiexec.hydra", "-n", "4"}), kShell}),
            "mpiexec.hydra -n 4 build/orthant train run.toml training.steps=20 --resume");
}

TEST(ResumeCommand, AResumedRunIsResumedAgain) {
  Words command = kCommand, line = with({"mpirun", "-np", "4"});
  command.push_back("--resume"), line.push_back("--resume");
  EXPECT_EQ(resumed(launch("openmpi"), {line}, command),
            "mpirun -np 4 build/orthant train run.toml training.steps=20 --resume");
}

TEST(ResumeCommand, UnderSrunItIsMadeFromTheNumbers) {
  EXPECT_EQ(resumed(launch("slurm", 16, 8), {{"slurmstepd: [1234.0]"}}, kCommand, {{"SLURM_NNODES", "2"}}),
            "srun --nodes=2 --ntasks=16 build/orthant train run.toml training.steps=20 --resume\n"
            "  (add the other options of srun that the run was started with)");
}

// The launcher's line is not known if it runs on another host, starts a script, or starts several programs at once.
TEST(ResumeCommand, WhereTheLauncherCannotBeRepeatedWordsSaySo) {
  const std::string words = "build/orthant train run.toml training.steps=20 --resume\n"
                            "  (run it with the launcher that started the 4 ranks)";
  EXPECT_EQ(resumed(launch("openmpi"), {{"orted", "-mca", "ess"}, kSystem}), words);
  EXPECT_EQ(resumed(launch("openmpi"), {{"sh", "start.sh"}, {"mpirun", "-np", "4", "sh", "start.sh"}}), words);
  EXPECT_EQ(resumed(launch("openmpi"), {with({"mpirun", "-np", "1", "other", ":", "-np", "3"})}), words);
  EXPECT_EQ(resumed(launch("environment"), {kShell}),
            "build/orthant train run.toml training.steps=20 --resume\n"
            "  (run it as each of the 4 ranks, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set as before)");
}

}  // namespace
}  // namespace orthant::resume_command_test
