// A rank dies or is stopped during a large message: how soon all ranks end, and what the error says. As in
// spawn_test.cc, this program also runs as the launcher and as the ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "base/errors.h"
#include "comm/comm.h"
#include "launch/process.h"
#include "launch/spawn.h"
#include "tests/support/program.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"

namespace orthant::death_test {
namespace {

constexpr int kRanks = 3;

std::vector<std::string> play(const std::string& part) {
  return {this_program(), "--gtest_filter=Death.DISABLED_" + part, "--gtest_also_run_disabled_tests",
          "--gtest_brief=1"};
}

std::string setting(const char* name) { return process_environment(name).value_or(""); }
double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[noreturn]] void end_with(Comm& comm, const CommError& error) {
  if (comm.abort(error.what())) {
    fmt::print(stderr, "error: {}\n", error.what());
  } else {
    // The watch may be about to report the failure and end this process.
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  std::fflush(nullptr);
  _exit(kFailed);
}

// Rank 1 receives the signal while all ranks are inside messages of many megabytes and have posted heartbeats.
TEST(Death, DISABLED_Rank) {
  die_with_parent();
  Launch launch = detect_launch(process_environment, parent_identity()).value();
  if (setting("BY_LAUNCHER") == "no")
    launch.run_id += " apart";  // a store prefix other than the one on which the launcher posts
  const int number = setting("SIGNAL") == "stop" ? SIGSTOP : SIGKILL;
  const Rendezvous rendezvous = connect(launch);
  Comm comm(Mesh({{"data", kRanks}}), launch.rank, rendezvous, {.transport = setting("TRANSPORT")});
  const auto die_later = [number] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    fmt::print("signal at {} s\n", now_s());
    std::fflush(stdout);
    raise(number);
  };
  const at::Tensor tensor = at::zeros({16 << 20});
  try {
    for (int step = 0;; ++step) {
      comm.set_activity(fmt::format("0REDUCE_GRAD{}", step));
      comm.all_reduce(tensor, kOverData).wait();
      if (step == 1 && launch.rank == 1) std::thread(die_later).detach();
    }
  } catch (const CommError& error) {
    end_with(comm, error);
  }
}

// hosts_test.py starts the next two tests on two hosts; the names begin with DISABLED_ because one process alone cannot
// run them. Rank 1 dies while rank 0 does `waits`.
void wait_for_rank_that_dies(const std::function<void(Comm&)>& start, const std::function<void(Comm&)>& waits) {
  die_with_parent();
  const Launch launch = detect_launch(process_environment, parent_identity()).value();
  Comm comm(Mesh({{"data", 2}}), launch.rank, connect(launch), {.transport = setting("TRANSPORT")});
  start(comm);
  if (launch.rank == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    fmt::print("signal at {} s\n", now_s());
    std::fflush(stdout);
    raise(SIGKILL);
  }
  try {
    waits(comm);
  } catch (const CommError& error) {
    end_with(comm, error);
  }
}

// Rank 0 only receives, and has never sent to the rank that it waits for.
TEST(Death, DISABLED_RootOfTheFirstBroadcast) {
  wait_for_rank_that_dies([](Comm&) {}, [](Comm& comm) { comm.broadcast(at::zeros({4}), kOverData, 1).wait(); });
}

// No operation of rank 0 is in progress, so none can fail.
TEST(Death, DISABLED_InARollCall) {
  wait_for_rank_that_dies([](Comm& comm) { comm.all_reduce(at::zeros({4}), kOverData).wait(); },
                          [](Comm& comm) { call_roll(comm.open_roll_call()); });
}

TEST(Death, DISABLED_Launcher) {
  const SpawnOptions options{.threads_per_rank = 1, .grace_s = std::stod(setting("GRACE_S"))};
  const int code = run_local_ranks(play("Rank"), kRanks, options);
  std::fflush(nullptr);
  _exit(code);
}

// Waits for the program to end. Returns the seconds between the signal and the end.
double seconds_to_end(Program& program) {
  EXPECT_EQ(program.exit_code(), kFailed) << program.output();
  const double end_s = now_s();
  const std::string output = program.output();
  const size_t at = output.find("signal at ");
  return at == std::string::npos ? 1e9 : end_s - std::stod(output.substr(at + 10));
}

// All ranks end within 1 s of a SIGKILL. This holds whether the launcher reports the death or the survivors detect
// it.
SWEEP_TEST(Death, KilledRankEndsAllWithinOneSecond) {
  // Grace period in seconds: the launcher kills nobody, so the ranks must end by themselves.
  constexpr const char* kNoForce = "1000";
  for (const std::string transport : sweep.of(std::vector{"gloo", "auto"}, 1)) {
    for (const std::string by_launcher : {"yes", "no"}) {
      Program program(
          play("Launcher"),
          {{"SIGNAL", "kill"}, {"TRANSPORT", transport}, {"BY_LAUNCHER", by_launcher}, {"GRACE_S", kNoForce}});
      const double seconds = seconds_to_end(program);
      EXPECT_LT(seconds, 1) << program.output();
      // A busy launcher may be slower than the ranks. It prints nothing if a rank has already reported the failure.
      EXPECT_TRUE(says(program.output(), {by_launcher == "yes" ? "error: rank 1 " : "error: rank 1 died: its process",
                                          "last reported activity: 0REDUCE_GRAD"}));
      fmt::print("{}, {}: all had ended {:.2f} s after a SIGKILL\n", transport,
                 by_launcher == "yes" ? "reported by the launcher" : "seen by the others", seconds);
    }
  }
}

// A stopped rank is detected by its missing heartbeats, and all ranks end within 6 s.
SWEEP_TEST(Death, StoppedRankIsDetectedByMissingHeartbeats) {
  for (const std::string transport : sweep.of(std::vector{"gloo", "auto"}, 1)) {
    Program program(play("Launcher"), {{"SIGNAL", "stop"}, {"TRANSPORT", transport}, {"GRACE_S", "0.5"}});
    const double seconds = seconds_to_end(program);
    // 3 s of it are suspected_timeout_s, the time allowed to a process that is seen to be stopped.
    EXPECT_LT(seconds, 6) << program.output();
    EXPECT_TRUE(says(program.output(), {"error: rank 1 has sent no heartbeat for", "is stopped",
                                        "last reported activity: 0REDUCE_GRAD"}));
    fmt::print("{}: all had ended {:.2f} s after a SIGSTOP\n", transport, seconds);
  }
}

}  // namespace
}  // namespace orthant::death_test
