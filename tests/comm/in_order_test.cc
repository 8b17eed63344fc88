// Operations in order, as NCCL carries them out: what must still work, what blocks, and orders that deadlock. Each
// deadlock has a control: without the option, the same operations end.
#include <chrono>
#include <thread>

#include "base/errors.h"
#include "tests/comm/line.h"

namespace orthant::in_order_test {
namespace {

void on_line_in_order(int n, bool in_order, const std::function<void(Comm&, int)>& fn, double timeout_s = 60) {
  run_ranks(n, [&](Rendezvous rendezvous, int rank) {
    Comm comm(line(n), rank, rendezvous, {.in_order = in_order, .timeout_s = timeout_s, .connect_timeout_s = 60});
    fn(comm, rank);
  });
}

// Returns whether the ranks wait for each other until the time limit.
bool deadlocks(int n, bool in_order, const std::function<void(Comm&, int)>& fn) {
  try {
    on_line_in_order(n, in_order, fn, 0.5);
  } catch (const CommError&) {
    return true;
  }
  return false;
}

at::Tensor filled(int64_t elements, double value) { return at::full({elements}, value); }

TEST(InOrder, RingsAndSumsAreRight) {
  on_line_in_order(3, true, [](Comm& comm, int rank) {
    for (const int64_t elements : {1, 100'000}) {
      at::Tensor in = filled(elements, rank), out = filled(elements, -1), sum = filled(elements, 1);
      Work shift = comm.shift(out, in, kOverData), add = comm.all_reduce(sum, kOverData);
      add.wait();
      shift.wait();
      EXPECT_TRUE(out.eq((rank + 2) % 3).all().item<bool>());
      EXPECT_TRUE(sum.eq(3).all().item<bool>());
    }
  });
}

// Each rank receives before it sends, as the ranks of a pipeline do. Both directions have a communicator of their own.
TEST(InOrder, MessagesOfBothDirectionsDoNotWaitForEachOther) {
  on_line_in_order(2, true, [](Comm& comm, int rank) {
    at::Tensor in = filled(100'000, -1), out = filled(100'000, rank);
    Work receive = comm.recv(in, kOverData, 1 - rank), send = comm.send(out, kOverData, 1 - rank);
    receive.wait();
    send.wait();
    EXPECT_TRUE(in.eq(1 - rank).all().item<bool>());
  });
}

TEST(InOrder, ASendEndsOnlyOnceItIsReceived) {
  for (const bool in_order : {true, false}) {
    on_line_in_order(2, in_order, [in_order](Comm& comm, int rank) {
      Comm other = comm.channel(1);
      at::Tensor tensor = filled(1, rank);
      if (rank == 0) {
        Work send = comm.send(tensor, kOverData, 1);
        if (!in_order) send.wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_EQ(send.done(), !in_order);
        other.barrier(kOverData).wait();
        send.wait();
      } else {
        other.barrier(kOverData).wait();
        comm.recv(tensor, kOverData, 0).wait();
        EXPECT_EQ(tensor.item<float>(), 0);
      }
    });
  }
}

// Messages with different tags match in any order, but not on one communicator.
TEST(InOrder, TwoTagsInDifferentOrderDeadlock) {
  const auto two_tags = [](Comm& comm, int rank) {
    at::Tensor a = filled(1, rank), b = filled(1, rank);
    Work works[2];
    for (const int tag : {0, 1}) {
      works[tag] = rank == 0 ? comm.send(tag == 0 ? a : b, kOverData, 1, tag)
                             : comm.recv(tag == 0 ? b : a, kOverData, 0, 1 - tag);
    }
    for (Work& work : works) work.wait();
  };
  EXPECT_TRUE(deadlocks(2, true, two_tags));
  EXPECT_FALSE(deadlocks(2, false, two_tags));
}

// Rank 0 sends, and waits until the message has left, before it receives; so does rank 1. Small messages without order
// leave at once.
TEST(InOrder, TwoRanksThatSendFirstDeadlock) {
  const auto send_first = [](Comm& comm, int rank) {
    at::Tensor in = filled(1, -1), out = filled(1, rank);
    comm.send(out, kOverData, 1 - rank).wait();
    comm.recv(in, kOverData, 1 - rank).wait();
  };
  EXPECT_TRUE(deadlocks(2, true, send_first));
  EXPECT_FALSE(deadlocks(2, false, send_first));
}

// Rank 0 adds before it shifts, rank 1 the other way round.
TEST(InOrder, TwoOperationsOfAGroupInDifferentOrderDeadlock) {
  const auto crossed = [](Comm& comm, int rank) {
    at::Tensor sum = filled(1, 1), in = filled(1, -1), out = filled(1, rank);
    Work first = rank == 0 ? comm.all_reduce(sum, kOverData) : comm.shift(in, out, kOverData);
    Work second = rank == 0 ? comm.shift(in, out, kOverData) : comm.all_reduce(sum, kOverData);
    first.wait();
    second.wait();
  };
  EXPECT_TRUE(deadlocks(2, true, crossed));
  EXPECT_FALSE(deadlocks(2, false, crossed));
}

}  // namespace
}  // namespace orthant::in_order_test
