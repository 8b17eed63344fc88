// Operations advance while their rank computes, and the numbers of threads stay small.
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

#include "tests/comm/line.h"

namespace orthant::progress_test {
namespace {

class Progress : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (lacks(GetParam())) GTEST_SKIP() << ucx_problem();
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Progress, testing::Values("ucx", "gloo"), [](const auto& one) { return one.param; });

// A large operation completes in the background: no rank calls wait() or progress() meanwhile.
TEST_P(Progress, GoesOnWhileRanksCompute) {
  constexpr int64_t kSize = (64 << 20) / 4;
  constexpr auto kGenerous = std::chrono::seconds(60);
  on_line(2, [&](Comm& comm, int rank) {
    const at::Tensor tensor = numbers(rank, kSize, at::kFloat);
    const at::Tensor sum = tensor + numbers(1 - rank, kSize, at::kFloat);
    comm.barrier(kOverData).wait();
    Work work = comm.all_reduce(tensor, kOverData);
    const auto start = std::chrono::steady_clock::now();
    while (!work.done() && std::chrono::steady_clock::now() - start < kGenerous) {  // done() itself advances nothing
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(work.done());
    work.wait();
    EXPECT_TRUE(equal(tensor, sum));
  }, GetParam());
}

// On a channel, small operations also advance in the background. Here the middle rank of a chain forwards the message
// without looking at it.
TEST_P(Progress, SmallOperationsOnChannelsAdvance) {
  constexpr auto kGenerous = std::chrono::seconds(60);
  on_line(
      3,
      [&](Comm& comm, int rank) {
        const at::Tensor value = at::full({1}, rank, at::kFloat);
        comm.barrier(kOverData).wait();
        Work work = comm.channel(1).broadcast(value, kOverData, 0);
        const auto start = std::chrono::steady_clock::now();
        while (!work.done() && std::chrono::steady_clock::now() - start < kGenerous) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        EXPECT_TRUE(work.done()) << "rank " << rank;
        work.wait();
        EXPECT_EQ(value.item<float>(), 0);
      },
      GetParam());
}

// A small operation outside a channel advances when a computing rank calls progress(), also where it only forwards.
TEST_P(Progress, ExplicitProgressAdvancesSmallOperations) {
  constexpr auto kGenerous = std::chrono::seconds(60);
  on_line(3, [&](Comm& comm, int rank) {
    const at::Tensor sum = at::full({1}, rank, at::kFloat);
    comm.barrier(kOverData).wait();
    Work work = comm.all_reduce(sum, kOverData);
    const auto start = std::chrono::steady_clock::now();
    while (!work.done() && std::chrono::steady_clock::now() - start < kGenerous) {
      comm.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(work.done()) << "rank " << rank;
    work.wait();
    EXPECT_EQ(sum.item<float>(), 3);
  }, GetParam());
}

// Ranks 1 to 7 have received everything and wait at the store, but UCX holds back some of their acknowledgements,
// because the queue of rank 0, which sleeps, is full. Without keep_advancing(), rank 0 waits for them in vain.
TEST_P(Progress, GoesOnWhileRanksWaitAtTheStore) {
  constexpr int kRanks = 8, kMessages = 60;
  on_line(
      kRanks,
      [&](Comm& comm, int rank) {
        const at::Tensor tensor = at::full({64 << 10}, rank, at::kByte);
        std::vector<at::Tensor> received;
        std::vector<Work> works;
        comm.barrier(kOverData).wait();
        for (int i = 0; i < kMessages; ++i) {
          for (int peer = 1; rank == 0 && peer < kRanks; ++peer) works.push_back(comm.send(tensor, kOverData, peer));
          if (rank == 0) continue;
          received.push_back(at::empty_like(tensor));
          works.push_back(comm.recv(received.back(), kOverData, 0));
        }
        if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        for (Work& work : works) work.wait();
        const auto advancing = comm.keep_advancing();
        call_roll(comm.open_roll_call());
        for (const at::Tensor& one : received) EXPECT_TRUE(one.eq(0).all().item<bool>());
      },
      GetParam());
}

int64_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Over Gloo, each message in progress blocks a thread. Of a tensor in many segments, only a few are in progress at
// once.
TEST(Threads, AreFewHoweverManySegments) {
  on_line(2, [&](Comm& comm, int rank) {
    const at::Tensor tensor = at::ones({(64 << 20) / 4});  // 128 segments of 512 KiB
    const auto before = threads();
    for (const bool reduce : {true, false}) {
      (reduce ? comm.reduce(tensor, kOverData) : comm.broadcast(tensor, kOverData)).wait();
      comm.barrier(kOverData).wait();
      EXPECT_LT(threads(), before + 40) << (reduce ? "reduce" : "broadcast") << ", rank " << rank;
    }
  }, "gloo");
}

// A pipeline rank that runs ahead of the next one has many sent messages whose receives are not posted yet.
TEST(Threads, AreFewHoweverManyMessagesAreNotReceivedYet) {
  constexpr int kMessages = 300;
  on_line(2, [&](Comm& comm, int rank) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    comm.barrier(kOverData).wait();
    const auto before = threads();
    for (int i = 0; i < kMessages; ++i) tensors.push_back(at::full({1 << 15}, rank == 0 ? i : -1, at::kInt));
    for (const at::Tensor& tensor : tensors) {
      if (rank == 0) works.push_back(comm.send(tensor, kOverData, 1));
    }
    EXPECT_LT(threads(), before + 40) << "rank " << rank;
    comm.channel(1).barrier(kOverData).wait();
    for (const at::Tensor& tensor : tensors) {
      if (rank == 1) works.push_back(comm.recv(tensor, kOverData, 0));
    }
    EXPECT_LT(threads(), before + 40) << "rank " << rank;
    for (Work& work : works) work.wait();
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(tensors[static_cast<size_t>(i)].eq(i).all().item<bool>());
  }, "gloo");
}

}  // namespace
}  // namespace orthant::progress_test
