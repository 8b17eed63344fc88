// Detection that another process runs, is gone, or ends.
#include "launch/process.h"

#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace orthant::process_test {
namespace {

TEST(Process, LifeOfAnotherProcess) {
  EXPECT_EQ(life_of(process_identity()), Life::running);
  EXPECT_EQ(pid_of(process_identity()), getpid());
  EXPECT_EQ(life_of("another/machine 1 2"), Life::elsewhere);
  EXPECT_EQ(life_of("nonsense"), Life::elsewhere);
  std::string reused = process_identity();  // the same pid with another start time
  reused.back() = reused.back() == '1' ? '2' : '1';
  EXPECT_EQ(life_of(reused), Life::gone);
}

TEST(Process, DeathIsReportedOnceAndAtOnce) {
  Program sleeper({"/bin/sleep", "100"}, {});
  const std::string identity = process_identity(sleeper.pid());
  Deaths deaths;
  deaths.expect(identity);
  deaths.expect("another/machine 1 2");
  EXPECT_FALSE(deaths.wait(0.05));
  kill(sleeper.pid(), SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(deaths.wait(100));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  deaths.expect(identity);
  EXPECT_FALSE(deaths.wait(0.05));
}

TEST(Process, AWaitForDeathsCanBeEnded) {
  Deaths deaths;
  const auto start = std::chrono::steady_clock::now();
  std::thread waker([&] { deaths.wake(); });
  EXPECT_FALSE(deaths.wait(100));
  waker.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(50));
}

}  // namespace
}  // namespace orthant::process_test
