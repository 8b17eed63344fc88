// Comm::reduce() after another operation: it starts when that operation has completed, and no thread of the rank has to
// drive it. The expected sums are computed by hand.
#include <chrono>
#include <thread>

#include "base/errors.h"
#include "tests/comm/line.h"

namespace orthant::start_after_test {
namespace {

class StartAfterOperation : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (lacks(GetParam())) GTEST_SKIP() << ucx_problem();
  }
};
INSTANTIATE_TEST_SUITE_P(Over, StartAfterOperation, testing::Values("ucx", "gloo", "staged"),
                         [](const auto& one) { return one.param; });

void expect_done_by_itself(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  while (!work.done() && std::chrono::steady_clock::now() - start < std::chrono::seconds(60)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(work.done());
}

// A sum whose summand depends on values gathered from all ranks before, as in the vocabulary layers. No rank waits for
// the all-gather before it issues the sum. Non-root ranks keep their summand.
TEST_P(StartAfterOperation, SumWaitsForGatheredInput) {
  constexpr int kRanks = 3, kRounds = 4;
  on_line(
      kRanks,
      [](Comm& comm, int rank) {
        struct Round {
          at::Tensor input, all = at::empty({kRanks}, at::kDouble), sum;
          Work gather, reduce;
        };
        std::vector<Round> rounds(kRounds);
        for (int64_t i = 0; Round & round : rounds) {
          round.input = at::full({1}, 10 * i + rank, at::kDouble);
          round.sum = at::full({i % 2 == 0 ? 4 : 1 << 18}, NAN, at::kDouble);
          round.gather = comm.channel(1).all_gather(round.all, round.input, kOverData);
          round.reduce = comm.channel(2).reduce_in_chunks(
              round.sum, kOverData, 1, round.gather, [&round, rank] { round.sum.fill_(round.all.sum() * (rank + 1)); });
          ++i;
        }
        for (Round& round : rounds) expect_done_by_itself(round.reduce);
        for (int64_t i = 0; Round & round : rounds) {
          round.reduce.wait(), round.gather.wait();
          const double all = 30.0 * static_cast<double>(i++) + 3;
          EXPECT_TRUE(round.sum.eq(rank == 1 ? all * 6 : all * (rank + 1)).all().item<bool>())
              << i << ", rank " << rank;
        }
        // The root owns the first chunk of each sum: 2 of 4 elements, and 87,382 of 262,144.
        const int64_t all = kRounds / 2 * (4 + (1 << 18)) * 8, of_root = kRounds / 2 * (2 + 87382) * 8;
        // Another rank's chunk has 1 of 4 elements, or 87,381. Each owner receives two summands of its chunk.
        const int64_t of_other = kRounds / 2 * (1 + 87381) * 8;
        const Moved moved = rank == 1 ? Moved{all - of_root, 2 * of_root + all - of_root} : Moved{all, 2 * of_other};
        EXPECT_EQ(comm.traffic().at({"data", "reduce_in_chunks"}), (Traffic{kRounds, moved}));
        EXPECT_EQ(comm.traffic().at({"data", "all_gather"}), (Traffic{kRounds, {kRounds * 2 * 8, kRounds * 2 * 8}}));
      },
      GetParam());
}

// The preceding operation may already have completed when the sum is issued.
TEST_P(StartAfterOperation, PrecedingOperationMayBeComplete) {
  on_line(
      2,
      [](Comm& comm, int rank) {
        const at::Tensor all = at::empty({2}, at::kDouble), sum = at::full({3}, NAN, at::kDouble);
        Work gather = comm.all_gather(all, at::full({1}, rank + 1.0, at::kDouble), kOverData);
        gather.wait();
        comm.reduce_in_chunks(sum, kOverData, 0, gather, [&] { sum.fill_(all.sum()); }).wait();
        EXPECT_EQ(sum[2].item<double>(), rank == 0 ? 6 : 3);
      },
      GetParam());
}

// An exception from `make` on one rank fails the sum on every rank, with the exception's text in the error.
TEST_P(StartAfterOperation, ExceptionInMakeFailsTheSum) {
  on_line(
      2,
      [](Comm& comm, int rank) {
        const at::Tensor all = at::empty({2}, at::kDouble), sum = at::zeros({3}, at::kDouble);
        Work gather = comm.channel(1).all_gather(all, at::ones({1}, at::kDouble), kOverData);
        const auto make = [rank] {
          if (rank == 1) throw DataError("no such label");
        };
        const auto reduce = [&] { comm.channel(2).reduce_in_chunks(sum, kOverData, 0, gather, make).wait(); };
        try {
          reduce();
          ADD_FAILURE() << "rank " << rank;
        } catch (const CommError& error) {
          EXPECT_NE(std::string(error.what()).find("reduce_in_chunks over data"), std::string::npos) << error.what();
          EXPECT_NE(std::string(error.what()).find("no such label"), std::string::npos) << error.what();
        }
      },
      GetParam());
}

// With one rank, `make` runs when the sum is issued, and no traffic is counted.
TEST(StartAfterOperation, OneRankRunsMakeAtOnce) {
  on_line(1, [](Comm& comm, int) {
    const at::Tensor sum = at::zeros({3});
    comm.reduce_in_chunks(sum, kOverData, 0, Work(), [&] { sum.fill_(5); }).wait();
    EXPECT_EQ(sum[0].item<float>(), 5);
    EXPECT_TRUE(comm.traffic().empty());
  });
}

}  // namespace
}  // namespace orthant::start_after_test
