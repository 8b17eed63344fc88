// Attention times equal values worked out by hand: the bytes that cross each link and the work of the busiest rank.
#include "advice/attention_time.h"

#include <gtest/gtest.h>

#include "advice/advised_plan.h"
#include "base/errors.h"
#include "plan/plan.h"

namespace orthant::attention_time_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(int ranks, Words keys) {
  keys.insert(keys.begin(), {"model.max_position_embeddings=4096", "training.seq_len=4096",
                             "training.global_batch_size=1", "training.local_batch_size=1"});
  const Config config = parse_config("", "run.toml", keys);
  check_with_advice(config);
  return advised_plan(config, {.ranks = ranks, .vocab_size = 257});
}

// Seconds of attention for the plan's own layout.
double seconds(const Plan& plan, const Links& links) {
  for (const LayerChoice& choice : layer_choices(plan)) {
    if (choice.chosen) return attention_seconds(plan, choice, links);
  }
  throw LogicError("the plan's own layout is not in the table");
}

int64_t head_elements(const Plan& plan) { return plan.architecture.num_attention_heads * plan.architecture.head_dim; }

// Counts operations: links cost almost nothing, and a rank does one operation per second.
double operations(const Plan& plan) { return seconds(plan, {0, 1e18, 1e18, 1}); }

const std::string kRing = "parallelism.context_parallel_ring=", kUlysses = "parallelism.context_parallel_ulysses=";
const std::string kPlacement = "parallelism.context_parallel_placement=", kWindow = "model.sliding_window=128";

// A rank sends seven of the eight blocks of 512 tokens. Each block is sent three times: keys and values in forward and
// in backward, and their gradients.
TEST(AttentionTime, DoubleRingsSendOneBlockAWindowToTheNext) {
  const Words keys = {kRing + "8"};
  const Plan one = plan_of(8, keys), two = plan_of(8, {keys[0], "parallelism.context_parallel_window=4"});
  const auto& a = one.architecture;
  const auto block = static_cast<double>(3 * 2 * 512 * a.num_key_value_heads * a.head_dim * 4);
  // In the single ring, one rank of a host sends its seven blocks to the other host. In the double ring, all four ranks
  // do so with one of their seven blocks.
  EXPECT_DOUBLE_EQ(seconds(one, {4, 100, 10, 0}), 7 * block / 10);
  EXPECT_DOUBLE_EQ(seconds(two, {4, 100, 10, 0}), 4 * block / 10);
  // Six blocks stay inside the window.
  EXPECT_DOUBLE_EQ(seconds(two, {4, 1, 10, 0}), 6 * block);
  // On a single host all seven blocks use the inner link.
  EXPECT_DOUBLE_EQ(seconds(two, {0, 100, 10, 0}), 7 * block / 100);
}

// The causal triangle of 4,096 queries has 4096 x 4097 / 2 scores. Zigzag gives each rank half of them; the second half
// of the queries has (2049 + 4096) x 2048 / 2.
TEST(AttentionTime, ComputingIsThatOfTheLargestPartOfTheTriangle) {
  const auto with = [](const Words& keys) { return operations(plan_of(2, keys)); };
  const auto score = static_cast<double>(12 * head_elements(plan_of(2, {})));
  EXPECT_DOUBLE_EQ(with({kRing + "2", kPlacement + "zigzag"}), 4'195'328 * score);
  EXPECT_DOUBLE_EQ(with({kRing + "2", kPlacement + "contiguous"}), 6'292'480 * score);
  EXPECT_DOUBLE_EQ(with({kRing + "2", kPlacement + "stripe"}), 4'196'352 * score);  // 2 + 4 + ... + 4096
  EXPECT_DOUBLE_EQ(with({kUlysses + "2"}), 8'390'656 * score / 2);
  EXPECT_DOUBLE_EQ(with({kRing + "2", kPlacement + "contiguous", "model.objective=masked"}), 2048 * 4096 * score);
}

TEST(AttentionTime, ComputingIsThatOfTheWindow) {
  const auto with = [](const Words& keys) { return operations(plan_of(2, keys)); };
  const auto score = static_cast<double>(12 * head_elements(plan_of(2, {})));
  EXPECT_DOUBLE_EQ(with({kRing + "2", kPlacement + "contiguous", kWindow}), 2048 * 128 * score);
  // The first 128 queries attend to 1, 2, ..., 128 keys, the others to 128.
  EXPECT_DOUBLE_EQ(with({kUlysses + "2", kWindow}), (64 * 129 + (4096 - 128) * 128) * score / 2);
}

TEST(AttentionTime, ComputingIsThatOfTheLargestShareOfHeadsAndSequences) {
  const auto score = static_cast<double>(12 * head_elements(plan_of(2, {})));
  // One of two data ranks has two of the three sequences.
  EXPECT_DOUBLE_EQ(operations(plan_of(4, {kRing + "2", "training.global_batch_size=3"})), 2 * 4'195'328 * score);
  EXPECT_DOUBLE_EQ(operations(plan_of(2, {"training.global_batch_size=3"})), 2 * 8'390'656 * score);
  // Two of four ranks have two of the six heads.
  const Plan six = plan_of(4, {kUlysses + "4", "model.hidden_size=48", "model.num_attention_heads=6",
                               "model.num_key_value_heads=6"});
  EXPECT_DOUBLE_EQ(operations(six), 8'390'656.0 * 12 * 8 * 2);
  // Recomputation adds one forward.
  EXPECT_DOUBLE_EQ(operations(plan_of(2, {kRing + "2", "activation_checkpoint.mode=full"})),
                   4'195'328 * score / 12 * 16);
}

}  // namespace
}  // namespace orthant::attention_time_test
