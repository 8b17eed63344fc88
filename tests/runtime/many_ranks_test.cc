// Training on more ranks than the other tests have: the sums over all ranks go along a tree.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "tests/support/tiny_run.h"

namespace orthant::many_ranks_test {
namespace {

// A rank connects to those with which it sums gradients, to its neighbors along other axes, and to those of the tree.
int most_connections(const Plan& plan) {
  int most = 2 * std::bit_width(static_cast<unsigned>(plan.mesh.size() - 1));
  most += plan.mesh.group_size(plan.gradient_axes) - 1;
  for (const Axis& axis : plan.mesh.axes) {
    if (std::ranges::find(plan.gradient_axes, axis.name) == plan.gradient_axes.end()) most += axis.size - 1;
  }
  return most;
}

TEST(ManyRanks, TrainAsPlannedWithFewConnections) {
  const TinyRun run;
  const Plan plan = run.plan(32, {"parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=2",
                                  "parallelism.pipeline_parallel_schedule=1f1b", "parallelism.context_parallel_ring=2",
                                  "training.global_batch_size=8", "training.local_batch_size=1"});
  ASSERT_LT(most_connections(plan), 31);
  const auto by_tree = [](const CommunicationEntry& entry) { return entry.collective == "all_reduce_by_tree"; };
  EXPECT_TRUE(std::ranges::any_of(plan.communication, by_tree));
  const auto ranks = train_ranks(plan, run.data(), {.steps = 2});
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank)) << rank;
    EXPECT_EQ(ranks[rank].last().loss, ranks[0].last().loss) << rank;
    EXPECT_EQ(ranks[rank].last().norm, ranks[0].last().norm) << rank;
    EXPECT_LE(ranks[rank].connections, most_connections(plan)) << rank;
  }
  // On 8 ranks, which sum directly, the first step has the same loss and norm.
  const Plan direct = run.plan(8, {"parallelism.tensor_parallel_degree=2", "parallelism.pipeline_parallel_degree=2",
                                   "parallelism.pipeline_parallel_schedule=1f1b", "parallelism.context_parallel_ring=2",
                                   "training.global_batch_size=8", "training.local_batch_size=1"});
  const auto few = train_ranks(direct, run.data(), {.steps = 1});
  EXPECT_NEAR(ranks[0].steps[0].loss, few[0].last().loss, 1e-10);
  EXPECT_NEAR(ranks[0].steps[0].norm, few[0].last().norm, 1e-10);
}

}  // namespace
}  // namespace orthant::many_ranks_test
