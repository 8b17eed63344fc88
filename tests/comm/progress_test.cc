// What goes on while nobody looks: messages while a rank computes, and no more threads and memory than that takes.
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

#include "tests/comm/line.h"

namespace orthant {
namespace {

class Progress : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (lacks(GetParam())) GTEST_SKIP() << ucx_problem();
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Progress, testing::Values("ucx", "gloo"), [](const auto& one) { return one.param; });

TEST_P(Progress, GoesOnWhileRanksCompute) {
  constexpr int64_t kSize = (64 << 20) / 4;
  constexpr auto kGenerous = std::chrono::seconds(60);
  on_line(2, [&](Comm& comm, int rank) {
    const at::Tensor tensor = numbers(rank, kSize, at::kFloat);
    const at::Tensor sum = tensor + numbers(1 - rank, kSize, at::kFloat);
    comm.barrier(kData).wait();
    Work work = comm.all_reduce(tensor, kData);
    const auto start = std::chrono::steady_clock::now();
    while (!work.done() && std::chrono::steady_clock::now() - start < kGenerous) {  // done() itself drives nothing
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(work.done());
    work.wait();
    EXPECT_TRUE(equal(tensor, sum));
  }, GetParam());
}

// A blocked thread for each message under way, over Gloo: of a tensor in many segments, only a few are.
TEST(Threads, AreFewHoweverManySegments) {
  const auto count = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  on_line(2, [&](Comm& comm, int rank) {
    const at::Tensor tensor = at::ones({(64 << 20) / 4});  // 128 segments
    const auto before = count();
    for (const bool reduce : {true, false}) {
      (reduce ? comm.reduce(tensor, kData) : comm.broadcast(tensor, kData)).wait();
      comm.barrier(kData).wait();
      EXPECT_LT(count(), before + 40) << (reduce ? "reduce" : "broadcast") << ", rank " << rank;
    }
  }, "gloo");
}

}  // namespace
}  // namespace orthant
