// measure_machine_speed() measures matrix products, and detects other programs that take CPU time.
#include "app/machine_speed.h"

#include "base/errors.h"
#include "tests/support/program.h"
#include "tests/support/says.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace orthant::machine_speed_test {
namespace {

// core_ticks() sums the text of /proc/stat over the given cores only; core 1 is not core 10.
TEST(MachineSpeed, TicksAreThoseOfTheCoresThatMayBeUsed) {
  const std::string text =
      "cpu  100 20 30 4000 5 6 7 8 9 10\n"
      "cpu0 10 2 3 400 5 6 7 8 0 0\n"
      "cpu1 1000 0 0 0 0 0 0 100 0 0\n"
      "cpu10 7 0 0 0 0 0 0 1 0 0\n"
      "intr 12345\n";
  EXPECT_EQ(core_ticks(text, {0}).busy, 28);
  EXPECT_EQ(core_ticks(text, {0}).stolen, 8);
  EXPECT_EQ(core_ticks(text, {0, 10}).busy, 35);
  EXPECT_EQ(core_ticks(text, {1}).stolen, 100);
  EXPECT_EQ(core_ticks("", {0}).busy, 0);
}

TEST(MachineSpeed, NeighboursAreNamedWithTheWayOut) {
  const MachineSpeed alone = {.threads = 4, .cpu_share = 0.97, .others_cores = 0.2, .stolen_cores = 0.1};
  EXPECT_EQ(neighbors_advice(alone), "");
  EXPECT_TRUE(says(neighbors_advice({.threads = 4, .cpu_share = 0.7, .others_cores = 1.3}),
                   {"other programs keep 1.3 of 4 cores busy", "stop them", "run.threads_per_rank"}));
  EXPECT_TRUE(says(neighbors_advice({.threads = 4, .cpu_share = 0.7, .others_cores = 1.3, .stolen_cores = 0.5}),
                   {"other virtual machines use 0.5 of 4 cores", "dedicated cores"}));
  EXPECT_TRUE(says(neighbors_advice({.threads = 1, .cpu_share = 0.5}), {"got 50% of the CPU time", "cpu.max"}));
}

TEST(MachineSpeed, AProgramThatTakesTheCoresIsSeen) {
  const MachineSpeed before = measure_machine_speed(0.2);
  EXPECT_GT(before.one_thread_gflops, 0);
  EXPECT_GT(before.all_threads_gflops, 0);
  EXPECT_GE(before.threads, 1);
  std::vector<std::unique_ptr<Program>> busy;
  for (int i = 0; i < 2 * before.threads; ++i) {
    busy.push_back(std::make_unique<Program>(std::vector<std::string>{"/bin/sh", "-c", "while :; do :; done"},
                                             std::map<std::string, std::string>{}));
  }
  const MachineSpeed beside = measure_machine_speed(0.4);
  busy.clear();
  EXPECT_LT(beside.cpu_share, 0.8);
  EXPECT_NE(neighbors_advice(beside), "");
}

}  // namespace
}  // namespace orthant::machine_speed_test
