// Ranks as real processes: our launcher starts them; they are killed, stopped and interrupted. This program plays all
// parts: a test runs it as the launcher (Play.DISABLED_Launcher), which runs it as the ranks (Play.DISABLED_Rank).
#include "launch/spawn.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/errors.h"
#include "comm/comm.h"
#include "launch/process.h"
#include "comm/thread_ranks.h"
#include "tests/support/program.h"
#include "tests/support/says.h"

namespace orthant::spawn_test {
namespace {


std::vector<std::string> play(const std::string& part) {
  return {this_program(), "--gtest_filter=Play.DISABLED_" + part, "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
}

std::string setting(const char* name) { return process_environment(name).value_or(""); }

// A hash (FNV-1a) of the tensor's bytes, which differs if one bit differs.
uint64_t bits_of(const at::Tensor& tensor) {
  uint64_t hash = 1469598103934665603u;
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  for (int64_t i = 0; i < tensor.numel() * tensor.element_size(); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  return hash;
}

// A hash of sums whose last bits depend on the order of additions.
uint64_t order_of_sums(Comm& comm) {
  uint64_t hash = 0;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    at::Tensor sum = (at::arange(999, at::kDouble) * (comm.rank() + 1)).sin().to(type);
    at::Tensor part = at::empty({333}, type);
    comm.reduce_scatter(part, sum, kOverData).wait();
    comm.all_reduce(sum, kOverData).wait();
    hash = hash * 31 + bits_of(sum);
    hash = hash * 31 + (comm.rank() == 0 ? bits_of(part) : 0);
  }
  return hash;
}

// The program of one rank. It never returns to gtest, because a rank ends with an exit code of its own.
[[noreturn]] void play_rank(const std::string& scene) {
  Launch launch = detect_launch(process_environment, parent_identity()).value();
  const bool apart = !setting("ORTHANT_TEST_APART").empty();  // with a store prefix on which the launcher does not post
  if (apart) launch.run_id += " apart";
  if (!setting("ORTHANT_TEST_PORT").empty()) {
    launch.store_kind = StoreKind::kServedByRankZero;
    launch.port = std::stoi(setting("ORTHANT_TEST_PORT"));
  }
  Rendezvous rendezvous = connect(launch);
  const int rank = launch.rank, ranks = launch.world_size;
  {
    Comm comm(Mesh({{"data", ranks}}), rank, rendezvous, {});
    comm.prepare(kOverData);
    if (scene == "sum") {
      const uint64_t hash = order_of_sums(comm);
      if (rank == 0) fmt::print("hash {}\n", hash);
    }
    at::Tensor tensor = at::ones({4});
    // Only rank 1 waits for the dead rank.
    if (scene == "chain" && rank > 0) comm.recv(tensor, kOverData, rank - 1).wait();
    const bool fails = scene == "kill" || scene == "exit" || scene == "stop" || scene == "throw" || scene == "chain" ||
                       scene == "server" || scene == "stopped server";
    for (int step = 0; fails || scene == "sleep"; ++step) {
      comm.set_activity(fmt::format("step {}", step));
      const bool is_rank_0 = scene == "chain" || scene == "server" || scene == "stopped server";
      if (rank == (is_rank_0 ? 0 : 1) && step == (scene == "chain" ? 0 : 3)) {
        // Two heartbeats, so that the other ranks know this step.
        if (scene == "stop" || scene == "server" || apart) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        if (scene == "kill" || scene == "chain" || scene == "server") raise(SIGKILL);
        if (scene == "stop" || scene == "stopped server") raise(SIGSTOP);
        if (scene == "exit") _exit(3);
        if (scene == "throw") {
          if (comm.abort("rank 1: disk full")) fmt::print(stderr, "error: rank 1: disk full\n");
          _exit(1);
        }
      }
      if (scene == "sleep" && step == 0 && rank == 0) fmt::print("started {}\n", getpid()), std::fflush(stdout);
      comm.all_reduce(tensor, kOverData).wait();
      if (scene == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  std::fflush(nullptr);
  _exit(0);
}

TEST(Play, DISABLED_Rank) {
  die_with_parent();
  if (setting("SCENE") == "obey") {
    std::signal(SIGINT, [](int) { _exit(kInterrupted); });
    std::signal(SIGTERM, [](int) { _exit(0); });
    fmt::print("ready {}\n", setting("RANK"));
    std::fflush(stdout);
    for (;;) pause();
  }
  if (setting("SCENE") == "slow") {
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, SIGTERM);
    sigprocmask(SIG_BLOCK, &asked, nullptr);
    fmt::print("ready {}\n", setting("RANK"));
    std::fflush(stdout);
    int number = 0;
    sigwait(&asked, &number);
    fmt::print("saving {}\n", setting("RANK"));
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    fmt::print("saved {}\n", setting("RANK"));
    std::fflush(stdout);
    _exit(0);
  }
  if (setting("SCENE") == "stubborn") {
    std::signal(SIGINT, SIG_IGN);
    fmt::print("ready {}\n", setting("RANK"));
    std::fflush(stdout);
    for (;;) pause();
  }
  try {
    play_rank(setting("SCENE"));
  } catch (const std::exception& error) {
    // A program that fails by an exception: the watch or the launcher reports the failure.
    fmt::print(stderr, "caught: {}\n", error.what());
    std::fflush(nullptr);
    _exit(1);
  }
}

TEST(Play, DISABLED_Launcher) {
  SpawnOptions options;
  options.threads_per_rank = 1;
  options.grace_s = setting("GRACE_S").empty() ? 1000 : std::stod(setting("GRACE_S"));
  options.advice = [] { return "resume with: orthant train run.toml --resume"; };
  if (!setting("RESTARTS").empty()) {
    options.restart = [left = std::stoi(setting("RESTARTS"))](const RankFailure& failure) mutable {
      fmt::print("failed: {}{}\n", failure.message, failure.reported ? ", reported" : "");
      std::fflush(stdout);
      return left-- > 0 ? play("Rank") : std::vector<std::string>();
    };
  }
  const int code = run_local_ranks(play("Rank"), std::stoi(setting("RANKS")), options);
  fmt::print("launcher ends with {}\n", code);
  std::fflush(nullptr);
  _exit(code);
}

Program launch(const std::string& scene, int ranks, const std::string& grace_s = "") {
  return Program(play("Launcher"), {{"SCENE", scene}, {"RANKS", std::to_string(ranks)}, {"GRACE_S", grace_s}});
}

int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Spawn, ProcessRanksAndThreadRanksGiveTheSameBits) {
  std::atomic<uint64_t> threads = 0;
  run_ranks(3, [&](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"data", 3}}), rank, rendezvous);
    const uint64_t hash = order_of_sums(comm);
    if (rank == 0) threads = hash;
  });
  Program program = launch("sum", 3);
  EXPECT_EQ(program.exit_code(), 0) << program.output();
  EXPECT_TRUE(says(program.output(), {fmt::format("hash {}\n", threads.load())}));
}

// The grace period is 1000 s, so these tests end only because every survivor detects the death by itself.
TEST(Spawn, AKilledRankIsNamedOnceAndAllEnd) {
  Program program = launch("kill", 3);
  EXPECT_EQ(program.exit_code(), 1) << program.output();
  EXPECT_TRUE(says(program.output(), {"rank 1 was killed by SIGKILL", "resume with: orthant train run.toml --resume"}));
  EXPECT_EQ(times(program.output(), "error: "), 1) << program.output();
}

TEST(Spawn, ARankThatWaitsOnlyOnASurvivorEnds) {
  Program program = launch("chain", 3);
  EXPECT_EQ(program.exit_code(), 1) << program.output();
  EXPECT_TRUE(says(program.output(), {"rank 0 was killed by SIGKILL"}));
}

TEST(Spawn, SurvivorsDetectDeathThemselves) {
  // The ranks use another store prefix than the one on which the launcher posts.
  Program program(play("Launcher"), {{"SCENE", "kill"}, {"RANKS", "3"}, {"ORTHANT_TEST_APART", "1"}});
  EXPECT_EQ(program.exit_code(), 1) << program.output();
  EXPECT_TRUE(says(program.output(), {"error: rank 1 died: its process", "last reported activity: step 3"}));
}

TEST(Spawn, TheStoreMayDieWithTheRankThatServesIt) {
  const std::string port = std::to_string(Store::serve(0, 5).port());
  Program program(play("Launcher"), {{"SCENE", "server"}, {"RANKS", "3"}, {"ORTHANT_TEST_PORT", port}});
  EXPECT_EQ(program.exit_code(), 1) << program.output();
  EXPECT_TRUE(says(program.output(), {"error: rank 0 died: its process", "has ended"}));
  EXPECT_EQ(times(program.output(), "error: rank 0 died"), 1) << program.output();
}

// A store whose process is stopped accepts requests and never answers.
TEST(Spawn, TheStoreMayStopWithTheRankThatServesIt) {
  const std::string port = std::to_string(Store::serve(0, 5).port());
  Program program(play("Launcher"), {{"SCENE", "stopped server"}, {"RANKS", "3"}, {"ORTHANT_TEST_PORT", port}});
  EXPECT_EQ(program.exit_code(), 1) << program.output();
  EXPECT_TRUE(says(program.output(), {"error: rank 0 has sent no heartbeat for", "is stopped", "activity: step 3"}));
  EXPECT_EQ(times(program.output(), "error: rank 0"), 1) << program.output();
}

TEST(Spawn, ARankThatServesTheStoreLeavesLast) {
  const std::string port = std::to_string(Store::serve(0, 5).port());
  Program program(play("Launcher"), {{"SCENE", "none"}, {"RANKS", "3"}, {"ORTHANT_TEST_PORT", port}});
  EXPECT_EQ(program.exit_code(), 0) << program.output();
  EXPECT_EQ(times(program.output(), "error"), 0) << program.output();
}

TEST(Spawn, AStoppedRankIsNamed) {
  Program program = launch("stop", 2, "0.5");
  EXPECT_EQ(program.exit_code(), 1) << program.output();
  EXPECT_TRUE(
      says(program.output(), {"rank 1 has sent no heartbeat for", "is stopped", "last reported activity: step 3"}));
  EXPECT_EQ(times(program.output(), "error: "), 1) << program.output();
  EXPECT_EQ(times(program.output(), "warning: "), 0) << program.output();
}

TEST(Spawn, ExitCodesAreHandedOn) {
  Program exits = launch("exit", 2);
  EXPECT_EQ(exits.exit_code(), 3) << exits.output();
  EXPECT_TRUE(says(exits.output(), {"rank 1 ended with exit code 3"}));
  Program well = launch("none", 2);
  EXPECT_EQ(well.exit_code(), 0) << well.output();
  EXPECT_EQ(times(well.output(), "error"), 0) << well.output();
}

// The error is printed only when the ranks do not start again.
TEST(Spawn, FailedRanksStartAgain) {
  for (const auto& [scene, failure, code] : {std::tuple("exit", "failed: rank 1 ended with exit code 3", 3),
                                             std::tuple("kill", "failed: rank 1 was killed by SIGKILL", 1)}) {
    Program program(play("Launcher"), {{"SCENE", scene}, {"RANKS", "3"}, {"GRACE_S", "5"}, {"RESTARTS", "1"}});
    EXPECT_EQ(program.exit_code(), code) << program.output();
    EXPECT_EQ(times(program.output(), failure), 2) << program.output();
    EXPECT_EQ(times(program.output(), "error: rank 1"), 1) << program.output();
  }
  Program reports(play("Launcher"), {{"SCENE", "throw"}, {"RANKS", "3"}, {"GRACE_S", "5"}, {"RESTARTS", "1"}});
  EXPECT_EQ(reports.exit_code(), 1) << reports.output();
  EXPECT_EQ(times(reports.output(), "error: rank 1: disk full"), 2) << reports.output();
  EXPECT_EQ(times(reports.output(), "error: "), 2) << reports.output();
  Program well(play("Launcher"), {{"SCENE", "none"}, {"RANKS", "2"}, {"RESTARTS", "2"}});
  EXPECT_EQ(well.exit_code(), 0) << well.output();
  EXPECT_EQ(times(well.output(), "failed"), 0) << well.output();
}

// A run that was asked to stop does not start again, also if a rank then fails.
TEST(Spawn, AStoppedRunDoesNotStartAgain) {
  for (const int number : {SIGINT, SIGTERM}) {
    Program program(play("Launcher"), {{"SCENE", "obey"}, {"RANKS", "2"}, {"RESTARTS", "2"}});
    ASSERT_TRUE(program.prints("ready 0") && program.prints("ready 1")) << program.output();
    kill(program.pid(), number);
    EXPECT_EQ(program.exit_code(), number == SIGINT ? 130 : 0) << program.output();
    EXPECT_EQ(times(program.output(), "failed"), 0) << program.output();
  }
}

// If a rank reports its own failure, neither the launcher nor another rank prints a second error.
TEST(Spawn, FailureIsReportedOnce) {
  Program program = launch("throw", 3);
  EXPECT_EQ(program.exit_code(), 1) << program.output();
  EXPECT_EQ(times(program.output(), "error: "), 1) << program.output();
  EXPECT_TRUE(says(program.output(), {"error: rank 1: disk full"}));
}

// The launcher forwards SIGINT and SIGTERM to its ranks, and SIGUSR1 and SIGHUP as SIGTERM. Here it ends with their
// exit code.
TEST(Spawn, SignalsAreForwardedOnce) {
  const std::pair<int, int> expected[] = {{SIGINT, 130}, {SIGTERM, 0}, {SIGUSR1, 0}, {SIGHUP, 0}};
  for (const auto& [number, code] : expected) {
    Program program = launch("obey", 2);
    ASSERT_TRUE(program.prints("ready 0") && program.prints("ready 1")) << program.output();
    kill(program.pid(), number);
    EXPECT_EQ(program.exit_code(), code) << program.output();
    EXPECT_EQ(times(program.output(), "error"), 0) << program.output();
  }
}

// Repeated requests to save and end (SIGUSR1, SIGHUP) do not kill ranks that are still saving.
TEST(Spawn, AskingTwiceToSaveKillsNobody) {
  Program program = launch("slow", 2);
  ASSERT_TRUE(program.prints("ready 0") && program.prints("ready 1")) << program.output();
  kill(program.pid(), SIGUSR1);
  ASSERT_TRUE(program.prints("saving 0") && program.prints("saving 1")) << program.output();
  kill(program.pid(), SIGUSR1);
  kill(program.pid(), SIGHUP);
  EXPECT_EQ(program.exit_code(), 0) << program.output();
  EXPECT_TRUE(says(program.output(), {"saved 0", "saved 1"}));
}

// A run that was started with SIGHUP ignored continues after a SIGHUP.
TEST(Spawn, IgnoredHangupDoesNotEndTheRun) {
  const auto before = std::signal(SIGHUP, SIG_IGN);  // as under nohup
  Program program = launch("obey", 2);
  std::signal(SIGHUP, before);
  ASSERT_TRUE(program.prints("ready 0") && program.prints("ready 1")) << program.output();
  kill(program.pid(), SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(program.pid(), SIGINT);  // only a run that still runs can end by this one
  EXPECT_EQ(program.exit_code(), 130) << program.output();
}

// The ranks ignore SIGINT. A second SIGINT soon after the first counts as the same Ctrl-C; one 1.5 s after the first
// kills the ranks.
TEST(Spawn, ASecondInterruptKills) {
  Program program = launch("stubborn", 2);
  ASSERT_TRUE(program.prints("ready 0") && program.prints("ready 1")) << program.output();
  kill(program.pid(), SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(kill(program.pid(), SIGINT), 0);  // it still runs, and counts this as part of the same Ctrl-C
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  EXPECT_EQ(kill(program.pid(), SIGINT), 0);
  EXPECT_EQ(program.exit_code(), 130) << program.output();
}

// If the launcher is killed, the kernel kills its ranks.
TEST(Spawn, RanksDieWithTheirLauncher) {
  Program program = launch("sleep", 2);
  ASSERT_TRUE(program.prints("started")) << program.output();
  const pid_t rank = std::stoi(program.output().substr(program.output().find("started ") + 8));
  ASSERT_EQ(kill(rank, 0), 0);
  kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.exit_code(), 1000 + SIGKILL);
  EXPECT_TRUE(Program::poll(20, [&] { return kill(rank, 0) != 0; }));
}

TEST(Spawn, AProgramThatDoesNotExist) { EXPECT_THROW(run_local_ranks({"/nonexistent/orthant"}, 2), CommError); }

}  // namespace
}  // namespace orthant::spawn_test
