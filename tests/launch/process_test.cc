// Detection that another process runs, is gone, or ends.
#include "launch/process.h"

#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace orthant::process_test {
namespace {

TEST(Process, LifeOfAnotherProcess) {
  EXPECT_EQ(process_state(process_identity()), ProcessState::running);
  EXPECT_EQ(pid_of(process_identity()), getpid());
  EXPECT_EQ(process_state("another/machine 1 2"), ProcessState::elsewhere);
  EXPECT_EQ(process_state("nonsense"), ProcessState::elsewhere);
  std::string reused = process_identity();  // the same pid with another start time
  reused.back() = reused.back() == '1' ? '2' : '1';
  EXPECT_EQ(process_state(reused), ProcessState::gone);
}

TEST(Process, DeathIsReportedOnceAndAtOnce) {
  Program sleeper({"/bin/sleep", "100"}, {});
  const std::string identity = process_identity(sleeper.pid());
  ProcessWatcher watcher;
  watcher.watch(identity);
  watcher.watch("another/machine 1 2");
  EXPECT_FALSE(watcher.wait(0.05));
  kill(sleeper.pid(), SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(watcher.wait(100));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  watcher.watch(identity);
  EXPECT_FALSE(watcher.wait(0.05));
}

TEST(Process, AWaitForDeathsCanBeEnded) {
  ProcessWatcher watcher;
  const auto start = std::chrono::steady_clock::now();
  std::thread waker([&] { watcher.wake(); });
  EXPECT_FALSE(watcher.wait(100));
  waker.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(50));
}

}  // namespace
}  // namespace orthant::process_test
