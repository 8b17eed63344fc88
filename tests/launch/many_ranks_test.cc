// Ranks as processes of the launcher: they start, make 20 steps and end, and their requests at the store are counted.
#include "tests/launch/many_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/program.h"

namespace orthant::many_ranks_test {
namespace {

ManyRanksCounts count_requests(int ranks, double limit_s, bool boards = true) {
  const auto folder = std::filesystem::path(this_program()).parent_path();
  const ManyRanksCounts counts = run_many_ranks(
      {.ranks = ranks, .boards = boards, .program = folder / "many_ranks", .stub_program = folder / "rank_stub"},
      limit_s);
  EXPECT_EQ(counts.exit_code, 0) << counts.output.substr(0, 3000);
  EXPECT_EQ(counts.ranks, ranks);
  fmt::print(
      "{} ranks: {:.1f} requests per rank, {} during the steps; {:.1f} s to start, {:.3f} s a step, {:.1f} s in all\n",
      ranks, static_cast<double>(counts.requests) / ranks, counts.step_requests, counts.start_s, counts.step_s,
      counts.total_s);
  return counts;
}

// The leader of the host asks twice a second; the others ask nothing.
constexpr int kMostDuringSteps = 8;

TEST(ManyRanks, OfOneHostAskTheStoreSeldom) {
  const ManyRanksCounts counts = count_requests(64, 60);
  EXPECT_LE(counts.requests, 40 * 64);
  EXPECT_LE(counts.step_requests, kMostDuringSteps);
  // The negative control: without a board, every rank asks for itself.
  EXPECT_GT(count_requests(32, 60, false).step_requests, 2 * kMostDuringSteps);
}

TEST(LongManyRanks, AThousandStartAndEndWithinAMinute) {
  const ManyRanksCounts counts = count_requests(1024, 120);
  EXPECT_LE(counts.requests, 40 * 1024);
  EXPECT_LE(counts.step_requests, 10 * kMostDuringSteps);  // steps take longer, as 1,024 ranks share the cores
  EXPECT_LT(counts.total_s, 60);
}

}  // namespace
}  // namespace orthant::many_ranks_test
