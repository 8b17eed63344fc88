// The printed plan names the ranks over which ZeRO shards the states, and those that hold copies of a shard (HSDP). A
// known mistake of other implementations is to take the ranks of one node for the sharding group, whatever the mesh
// and the degrees are.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "advice/advised_plan.h"
#include "advice/explain.h"

namespace orthant::explain_states_test {
namespace {

using Words = std::vector<std::string>;

/// The line about the states in the printed plan of 16 ranks: tensor 2, data 8. Empty without such a line.
std::string states_line(const Words& keys) {
  Words all = {"parallelism.tensor_parallel_degree=2", "training.global_batch_size=16"};
  all.insert(all.end(), keys.begin(), keys.end());
  const std::string text =
      explain(advised_plan(parse_config("", "run.toml", all), {.ranks = 16, .vocab_size = 257}), {});
  const size_t begin = text.find("\nstates ");
  return begin == text.npos ? "" : text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

std::string copies(int count) { return "parallelism.data_parallel_replicate_degree=" + std::to_string(count); }
const std::string kStage2 = "parallelism.zero_stage=2", kStage3 = "parallelism.zero_stage=3";
const std::string kAll = "states   weights, gradients and optimizer state of rank 0: sharded over ";

// Columns are the innermost axis: ranks 0 and 1 hold different shards of every matrix. The data ranks of rank 0 are
// 0, 2, ..., 14. In two copies, each has four of them.
TEST(ExplainStates, NameTheShardingGroupAndTheCopies) {
  EXPECT_EQ(states_line({kStage3, copies(2)}), kAll + "4 ranks (0 2 4 6); 2 copies (its shards are on ranks 0 8)");
}

// The control: another number of copies, another stage or another mesh prints other groups.
TEST(ExplainStates, FollowTheDegreesAndTheMesh) {
  EXPECT_EQ(states_line({}), "");
  EXPECT_EQ(states_line({kStage3}), kAll + "8 ranks (0 2 4 6 8 10 12 14)");
  EXPECT_EQ(states_line({kStage3, copies(4)}), kAll + "2 ranks (0 2); 4 copies (its shards are on ranks 0 4 8 12)");
  EXPECT_EQ(states_line({kStage2, copies(2)}), "states   gradients and optimizer state of rank 0: sharded over 4 ranks "
                                               "(0 2 4 6); 2 copies (its shards are on ranks 0 8)");
  EXPECT_EQ(states_line({kStage3, copies(2), "parallelism.pipeline_parallel_degree=2",
                         "parallelism.pipeline_parallel_schedule=1f1b"}),
            kAll + "2 ranks (0 2); 2 copies (its shards are on ranks 0 4)");
}

}  // namespace
}  // namespace orthant::explain_states_test
