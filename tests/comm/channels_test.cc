// Channels: operations of two channels need no common order; within one channel all ranks must keep the same order.
#include <algorithm>

#include "base/errors.h"
#include "tests/comm/line.h"

namespace orthant::channels_test {
namespace {

// Every rank issues the same three sums, starting at a different one. Returns true if every sum is correct.
bool in_many_orders(int n, int channels, int64_t size) {
  std::vector<char> right(static_cast<size_t>(n), 0);
  on_line(n, [&](Comm& comm, int rank) {
    std::vector<at::Tensor> sums;
    std::vector<Work> works(3);
    for (int i = 0; i < 3; ++i) sums.push_back(at::full({size}, i + 1.0, at::kDouble) * (rank + 1));
    for (int i = 0; i < 3; ++i) {
      const int which = (i + rank) % 3;
      works[static_cast<size_t>(which)] =
          comm.channel(1 + which % channels).all_reduce(sums[static_cast<size_t>(which)], kOverData);
    }
    for (Work& work : works) work.wait();
    bool all = true;
    for (int i = 0; i < 3; ++i) {
      all = all && sums[static_cast<size_t>(i)].eq((i + 1.0) * n * (n + 1) / 2).all().item<bool>();
    }
    right[static_cast<size_t>(rank)] = all;
  });
  return std::all_of(right.begin(), right.end(), [](char one) { return one != 0; });
}

// Negative control: on a single channel, the different orders give wrong sums.
TEST(Channels, NeedNoCommonOrder) {
  for (const int n : {2, 3, 5}) {
    for (const int64_t size : {1, 40000}) {
      EXPECT_TRUE(in_many_orders(n, 3, size)) << n;
      EXPECT_FALSE(in_many_orders(n, 1, size)) << n << " on one channel: the control";
    }
  }
}

// Traffic of a channel is counted in its Comm. Channels are numbered 1 to 7 and cannot be nested.
TEST(Channels, TrafficIsCountedInTheirComm) {
  on_line(3, [](Comm& comm, int rank) {
    comm.channel(2).broadcast(at::ones({10}), kOverData, 1).wait();
    EXPECT_EQ(comm.traffic().at({"data", "broadcast"}), (Traffic{1, {rank == 0 ? 0 : 40, rank == 1 ? 0 : 40}}));
    EXPECT_THROW(comm.channel(0), LogicError);
    EXPECT_THROW(comm.channel(8), LogicError);
    EXPECT_THROW(comm.channel(1).channel(2), LogicError);
  });
}

}  // namespace
}  // namespace orthant::channels_test
