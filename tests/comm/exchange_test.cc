// Comm::exchange(): messages in both directions at once, their byte count, and the peers that it refuses.
#include "base/errors.h"
#include "tests/comm/line.h"

namespace orthant::exchange_test {
namespace {

TEST(Exchange, PassesShardsRoundARingBothWays) {
  for (const int n : {2, 3, 4}) {
    on_line(n, [&](Comm& comm, int rank) {
      // Large enough that no transport can buffer it; the directions differ in size and in value.
      const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
      const at::Tensor up = at::full({200000}, rank, at::kFloat), down = at::full({3}, 10 + rank, at::kLong);
      at::Tensor from_below = at::empty_like(up), from_above = at::empty_like(down);
      const std::vector<Transfer> transfers = {{up, next, false, 1},
                                               {down, previous, false, 2},
                                               {from_below, previous, true, 1},
                                               {from_above, next, true, 2}};
      constexpr int64_t kBytes = 200000 * 4 + 3 * 8;
      comm.exchange(transfers, kOverData).wait();
      EXPECT_TRUE(equal(from_below, at::full({200000}, previous, at::kFloat)));
      EXPECT_TRUE(equal(from_above, at::full({3}, 10 + next, at::kLong)));
      EXPECT_EQ(comm.traffic(), (TrafficTable{{{"data", "exchange"}, {1, {kBytes, kBytes}}}}));
    });
  }
}

// An exchange without messages sends nothing and is not counted.
TEST(Exchange, EmptyExchangeSendsNothing) {
  on_line(2, [&](Comm& comm, int) {
    comm.exchange({}, kOverData).wait();
    EXPECT_TRUE(comm.traffic().empty());
  });
}

TEST(Exchange, RefusesAPeerOutsideTheGroupAndItself) {
  on_line(2, [&](Comm& comm, int rank) {
    const at::Tensor one = at::ones({1});
    for (const int peer : {rank, 2, -1}) {
      const std::vector<Transfer> wrong = {{one, peer}};
      EXPECT_THROW((void)comm.exchange(wrong, kOverData), LogicError);
    }
  });
}

}  // namespace
}  // namespace orthant::exchange_test
