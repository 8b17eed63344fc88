// The memory that a machine or its control groups leave for a run, read from the test's own files, and the warnings
// about plans that need more.
#include "runtime/machine_memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace orthant::machine_memory_test {
namespace {

constexpr int64_t kMiB = 1 << 20;

class Machine : public testing::Test {
 protected:
  ~Machine() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void meminfo() { write("proc/meminfo", "MemTotal:  8192 kB\nMemFree:  1024 kB\nMemAvailable:  4096 kB\n"); }
  void expect(int64_t total_mib, int64_t available_mib, const std::string& owner) {
    const MachineMemory memory = machine_memory(root_.string());
    EXPECT_EQ(memory.total_bytes, total_mib * kMiB);
    EXPECT_EQ(memory.available_bytes, available_mib * kMiB);
    EXPECT_EQ(memory.owner, owner);
  }
  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / fmt::format("orthant-machine-{}", getpid());
};

TEST_F(Machine, WithoutLimits) {
  expect(0, 0, "this machine");
  meminfo();
  expect(8, 4, "this machine");
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.current", "7340032\n");
  expect(8, 4, "this machine");
}

TEST_F(Machine, TheTightestControlGroupCounts) {
  meminfo();
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.max", std::to_string(3 * kMiB));
  write("sys/fs/cgroup/a/memory.current", std::to_string(2 * kMiB));
  write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file " + std::to_string(kMiB) + "\n");
  expect(3, 2, "this control group");
  // Inside a container, the group is the root of the visible hierarchy.
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", std::to_string(2 * kMiB));
  write("sys/fs/cgroup/memory.current", std::to_string(5 * kMiB));
  expect(2, 0, "this control group");
}

TEST_F(Machine, ControlGroupsOfVersionOne) {
  meminfo();
  write("proc/self/cgroup", "9:cpu:/x\n5:memory:/m\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/m/memory.limit_in_bytes", std::to_string(6 * kMiB));
  write("sys/fs/cgroup/memory/m/memory.usage_in_bytes", std::to_string(4 * kMiB));
  write("sys/fs/cgroup/memory/m/memory.stat", "total_inactive_file " + std::to_string(kMiB) + "\n");
  expect(6, 3, "this control group");
}

TEST(MemoryNeed, WarnsBelowWhatIsThereAndRefusesBeyond) {
  Plan plan;
  plan.mesh = Mesh({{"data", 2}});
  plan.classes = RankClasses(std::vector{0, 1});
  plan.memory = {{.parameters = 10 * kMiB}, {.parameters = 12 * kMiB}};
  const auto need = [&](int ranks, int64_t total_mib, int64_t available_mib) {
    return memory_need(plan, ranks, {.total_bytes = total_mib * kMiB, .available_bytes = available_mib * kMiB});
  };
  EXPECT_EQ(need(2, 30, 24).warning, "");
  EXPECT_EQ(need(2, 0, 0).warning, "");  // not known
  EXPECT_EQ(
      need(2, 30, 23).warning,
      "the plan needs 12.0 MiB for each of 2 ranks, 24.0 MiB in all, but of the 30.0 MiB of this machine only 23.0 "
      "MiB are available");
  EXPECT_FALSE(need(2, 30, 23).exceeds_machine);
  EXPECT_EQ(need(1, 11, 5).warning, "the plan needs 12.0 MiB, but this machine has 11.0 MiB");
  EXPECT_TRUE(need(1, 11, 5).exceeds_machine);
}

}  // namespace
}  // namespace orthant::machine_memory_test
