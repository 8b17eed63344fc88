// Ranks that are stopped while no rank watches them: the launcher names them. This program plays all parts: a test runs
// it as the launcher (StoppedPlay.DISABLED_Launcher), which runs it as the ranks (StoppedPlay.DISABLED_Rank).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "launch/launch.h"
#include "launch/process.h"
#include "launch/rendezvous.h"
#include "launch/spawn.h"
#include "launch/watch.h"
#include "tests/support/program.h"
#include "tests/support/says.h"

namespace orthant::stopped_ranks_test {
namespace {

std::vector<std::string> play(const std::string& part) {
  return {this_program(), "--gtest_filter=StoppedPlay.DISABLED_" + part, "--gtest_also_run_disabled_tests",
          "--gtest_brief=1"};
}

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Rank 1 stops itself at a point of its life that the scene names; in the scene "all", each rank does.
TEST(StoppedPlay, DISABLED_Rank) {
  die_with_parent();
  const std::string scene = process_environment("SCENE").value_or("");
  const Launch launch = detect_launch(process_environment, parent_identity()).value();
  const auto stop_if = [&](const std::string& point) {
    if (scene != point || (scene != "all" && launch.rank != 1)) return;
    fmt::print("pid of rank {}: {}\n", launch.rank, getpid());
    std::fflush(stdout);
    raise(SIGSTOP);
  };
  stop_if("unconnected");
  const Rendezvous rendezvous = connect(launch);
  Watch watch(rendezvous.store, "comm/0", launch.rank, launch.world_size, 60, {.board = rendezvous.board});
  stop_if("all");
  stop_if("left behind");  // the others leave at once, so no rank watches this one
  watch.leave(true);
  stop_if("last");
  std::fflush(nullptr);
  _exit(0);
}

TEST(StoppedPlay, DISABLED_Launcher) {
  const int code = run_local_ranks(play("Rank"), 2, {.threads_per_rank = 1, .grace_s = 1000});
  std::fflush(nullptr);
  _exit(code);
}

// A launcher of two ranks whose rank 1 is stopped.
class StoppedRun : public Program {
 public:
  explicit StoppedRun(const std::string& scene) : Program(play("Launcher"), {{"SCENE", scene}}) {
    constexpr const char* kPid = "pid of rank 1: ";
    if (prints(kPid)) rank_ = std::stoi(output().substr(output().find(kPid) + std::string(kPid).size()));
    EXPECT_GT(rank_, 0) << output();
  }
  pid_t rank() const { return rank_; }
  int warnings() const {
    int count = 0;
    const std::string text = output();
    for (size_t at = 0; (at = text.find("warning: ", at)) != std::string::npos; ++at) ++count;
    return count;
  }

 private:
  pid_t rank_ = 0;
};

TEST(StoppedRanks, AreNamedIfNoRankWatchesThem) {
  std::map<std::string, StoppedRun> launchers;
  for (const char* scene : {"unconnected", "last", "left behind"}) launchers.try_emplace(scene, scene);
  for (auto& [scene, launcher] : launchers) {
    const std::string stage =
        scene == "unconnected" ? "before all are connected" : "after the last message between ranks";
    ASSERT_TRUE(launcher.prints("warning: the run waits for 1 stopped rank ", 5)) << launcher.output();
    EXPECT_TRUE(says(launcher.output(), {stage + ": rank 1", fmt::format("(process {}, by SIGSTOP)", launcher.rank()),
                                         fmt::format("kill -CONT {}", launcher.rank()), "Ctrl-C"}));
    sleep_s(0.5);
    EXPECT_EQ(launcher.warnings(), 1) << launcher.output();
    kill(launcher.rank(), SIGCONT);
    EXPECT_EQ(launcher.exit_code(), 0) << launcher.output();
    EXPECT_TRUE(says(launcher.output(), {"warning: rank 1 runs again"}));
    EXPECT_EQ(launcher.output().find("error: "), std::string::npos) << launcher.output();
  }
}

TEST(StoppedRanks, AreNamedIfNoRankRuns) {
  StoppedRun launcher("all");
  constexpr const char* kCommand = "kill -CONT ";
  ASSERT_TRUE(launcher.prints(kCommand, 5)) << launcher.output();
  const std::string output = launcher.output();
  EXPECT_TRUE(says(output, {"warning: the run waits for 2 stopped ranks, and no other rank runs: rank 0 (process ",
                            "rank 1 (process "}));
  sleep_s(1.5);  // with the 2 s before the warning, longer than the patience of a rank that watches a stopped one
  EXPECT_EQ(launcher.warnings(), 1) << launcher.output();
  std::istringstream pids(output.substr(output.find(kCommand) + std::string(kCommand).size()));
  for (pid_t pid = 0; pids >> pid;) kill(pid, SIGCONT);
  EXPECT_EQ(launcher.exit_code(), 0) << launcher.output();
  EXPECT_EQ(launcher.output().find("error: "), std::string::npos) << launcher.output();
}

TEST(StoppedRanks, AreNotNamedIfTheyContinueSoon) {
  StoppedRun launcher("last");
  sleep_s(0.5);
  EXPECT_EQ(launcher.exit_code(0), -1) << launcher.output();  // it waits
  kill(launcher.rank(), SIGCONT);
  EXPECT_EQ(launcher.exit_code(), 0) << launcher.output();
  EXPECT_EQ(launcher.warnings(), 0) << launcher.output();
}

// A signal that ends the run also continues a stopped rank, which could not handle the signal otherwise.
TEST(StoppedRanks, EndAfterAnInterrupt) {
  StoppedRun launcher("last");
  sleep_s(0.2);
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.exit_code(5), kInterrupted) << launcher.output();
}

}  // namespace
}  // namespace orthant::stopped_ranks_test
