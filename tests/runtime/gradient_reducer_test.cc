// The reduction of gradient buckets while backward runs. A bucket starts with its last gradient, in the same order on
// all ranks. Controls: a surplus gradient throws, and a dropped bucket stays unreduced.
#include "parallel/data/run.h"

#include "base/errors.h"
#include "comm/thread_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace orthant::gradient_reducer_test {
namespace {


// Three buckets of two weights each, ten elements a weight, on ranks that complete them in different orders.
struct Reduction {
  static constexpr int64_t kWeights = 6, kSize = 10;
  std::vector<GradientBucket> buckets = {
      {{0, 20}, {0, 1}, kOverData}, {{20, 40}, {2, 3}, kOverData}, {{40, 60}, {4, 5}, kOverData}};
  at::Tensor flat;
  GradientReducer reducer;

  /// dropped: index of a bucket that is given no elements; -1 for none.
  Reduction(Comm& comm, int rank, int dropped = -1)
      : flat(at::arange(kWeights * kSize, at::kDouble) + 1000.0 * rank),
        reducer(comm, flat, without(buckets, dropped), {2, 1, 1, 1, 1, 1}) {}

  static std::vector<GradientBucket> without(std::vector<GradientBucket> all, int dropped) {
    if (dropped >= 0) all[static_cast<size_t>(dropped)].elements = {};
    return all;
  }
};

at::Tensor expected_sum(int ranks) {
  return at::arange(Reduction::kWeights * Reduction::kSize, at::kDouble) * ranks + 1000.0 * (ranks * (ranks - 1) / 2);
}

int64_t started(const Comm& comm) { return comm.total_traffic().calls; }

TEST(GradientReducer, StartsEachBucketWithItsLastGradientAndInOrder) {
  run_ranks(2, [](const Rendezvous& rendezvous, int rank) {
    Comm comm(Mesh({{"data", 2}}), rank, rendezvous);
    Reduction r(comm, rank);
    r.reducer.begin(1);
    auto after = [&](int weight) {
      r.reducer.written(weight);
      return started(comm);
    };
    EXPECT_EQ(after(5), 0);
    EXPECT_EQ(after(4), 1) << "the last bucket is complete";
    EXPECT_EQ(after(0), 1);
    EXPECT_EQ(after(1), 1);
    EXPECT_EQ(after(0), 1) << "the first bucket is complete, but the second has not started";
    EXPECT_EQ(after(2), 1);
    EXPECT_EQ(after(3), 3);
    for (const int bucket : {2, 1, 0}) r.reducer.finish(bucket);
    EXPECT_TRUE(r.flat.equal(expected_sum(2)));
  });
}

TEST(GradientReducer, RanksThatCompleteInAnyOrderOrHaveNothingAgree) {
  run_ranks(4, [](const Rendezvous& rendezvous, int rank) {
    Comm comm(Mesh({{"data", 4}}), rank, rendezvous);
    for (int step = 1; step <= 2; ++step) {
      Reduction r(comm, rank);
      // Rank 3 has no sequences. The other ranks have two microbatches, whose gradients they write in different orders.
      const int microbatches = rank == 3 ? 0 : 2;
      r.reducer.begin(microbatches);
      for (int m = 0; m < microbatches; ++m) {
        std::vector<int> order = {5, 4, 3, 2, 1, 0, 0};
        if (rank == 1) order = {0, 1, 2, 3, 4, 5, 0};
        if (rank == 2) order = {2, 5, 0, 4, 0, 3, 1};
        for (const int weight : order) r.reducer.written(weight);
      }
      EXPECT_EQ(started(comm) - 3 * (step - 1), rank == 3 ? 0 : 3);
      for (const int bucket : {2, 1, 0}) r.reducer.finish(bucket);
      EXPECT_EQ(started(comm), 3 * step);
      EXPECT_TRUE(r.flat.equal(expected_sum(4))) << "rank " << rank;
    }
  });
}

TEST(GradientReducer, AGradientTooManyIsOurOwnMistakeAndADroppedBucketStaysLocal) {
  run_ranks(2, [](const Rendezvous& rendezvous, int rank) {
    Comm comm(Mesh({{"data", 2}}), rank, rendezvous);
    Reduction r(comm, rank, 1);
    r.reducer.begin(0);
    EXPECT_THROW(r.reducer.written(5), LogicError);
    const at::Tensor own = r.flat.clone();
    for (const int bucket : {2, 1, 0}) r.reducer.finish(bucket);
    EXPECT_TRUE(r.flat.narrow(0, 20, 20).equal(own.narrow(0, 20, 20)));
    EXPECT_TRUE(r.flat.narrow(0, 40, 20).equal(expected_sum(2).narrow(0, 40, 20)));
  });
}

}  // namespace
}  // namespace orthant::gradient_reducer_test
