// When sharded weights (ZeRO 3) are gathered changes no result: not whether gathers overlap with computation, and not
// the order in which a schedule uses the units. The controls corrupt a gathered weight on one rank.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "schedule/validate.h"
#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/sharded_runs.h"

namespace orthant::zero_overlap_test {
namespace {

struct Layout {
  std::string name;
  int ranks;
  Words keys;
};

const std::string kDataOfTwo = "parallelism.data_parallel_degree=2", kTied = "model.tie_word_embeddings=true",
                  kFourLayers = "model.num_hidden_layers=4";

/// Returns the plan with every UNSHARD directly before the first pass that reads the unit's weights. No gather then
/// overlaps with computation.
Plan without_prefetch(Plan plan) {
  const ShardedUnits units = plan.units();
  for (std::vector<Action>& row : plan.schedule.rows) {
    std::vector<Action> moved;
    std::set<int> waiting;  // units whose UNSHARD has not been placed yet
    for (const Action& action : row) {
      if (action.kind == ActionKind::UNSHARD) {
        waiting.insert(action.stage);
        continue;
      }
      if (reads_weights(action)) {
        const auto& read = action.kind == ActionKind::F ? units.forward : units.backward;
        for (const int unit : read[static_cast<size_t>(action.stage)]) {
          if (waiting.erase(unit) > 0) moved.push_back({ActionKind::UNSHARD, unit});
        }
      }
      moved.push_back(action);
    }
    EXPECT_TRUE(waiting.empty());
    row = moved;
  }
  EXPECT_TRUE(problems(plan.schedule, microbatch_count(plan.schedule)).empty());
  return plan;
}

/// Returns a Course::prepare under which one rank corrupts a gathered weight once: in the first backward of a block,
/// between the gradients of its MLP and those of its attention.
auto corrupting(int on_rank) {
  return [on_rank](Session& session, int rank) {
    if (rank != on_rank) return;
    Weights& weights = session.weights();
    const std::string block = "model.layers.1.";
    const Weight &written = weights[block + "mlp.down_proj.weight"],
                 &read = weights[block + "self_attn.o_proj.weight"];
    weights.on_gradient = [&, inner = weights.on_gradient, done = false](const Weight& weight) mutable {
      if (&weight == &written && !done) {
        const auto bucket = weights.segmented_values().segment_of(
            weights.flat().weights[static_cast<size_t>(read.index)].first, read.value.numel());
        EXPECT_TRUE(weights.segmented_values().is_allocated(bucket));
        read.value.mutable_data_ptr<double>()[0] += 1;
        done = true;
      }
      inner(weight);
    };
  };
}

std::vector<Layout> layouts() {
  return {{"data 4", 4, {}},
          {"data 2, zb_v, tied, both on one rank", 4, pipeline("zb_v", 2, {kDataOfTwo, kTied, kFourLayers})},
          {"data 3, tied", 3, {kTied}},
          {"data 2, 1f1b", 4, pipeline("1f1b", 2, {kDataOfTwo})},
          {"data 2, recomputed", 2, {kRecompute}},
          {"data 2, algorithm_2", 4, cut("algorithm_2", "1f1b", 2, {kDataOfTwo, kFourLayers})},
          {"data 2, interleaved", 4, pipeline("interleaved_1f1b", 2, {kDataOfTwo, kFourLayers})}};
}

SWEEP_TEST(ZeroOverlap, GathersWithoutPrefetchChangeNoBit) {
  const TinyRun run({"training.dtype=float64", "training.local_batch_size=1"});
  for (const Layout& layout : sweep.of(layouts(), 3)) {
    for (const auto& [name, stage] : kStages2And3) {
      const std::string what = layout.name + ", " + name;
      const Plan plan = run.plan(layout.ranks, with(layout.keys, stage)), late = without_prefetch(plan);
      if (!plan.shards_weights()) continue;
      EXPECT_NE(late.schedule, plan.schedule) << what;
      const auto want = train_ranks(plan, run.data()), have = train_ranks(late, run.data());
      EXPECT_EQ(first_difference(late, have, plan, want, {}), "") << what;
      for (size_t rank = 0; rank < have.size(); ++rank) {
        EXPECT_EQ(have[rank].last().traffic, planned_traffic(plan, rank)) << what;
      }
    }
  }
}

// The control: a corrupted weight is seen with prefetch and without.
TEST(ZeroOverlap, ACorruptedGatheredWeightIsSeen) {
  const TinyRun run({"training.dtype=float64", "training.local_batch_size=1"});
  for (const auto& [name, stage] : kStages2And3) {
    const Plan plan = run.plan(3, stage);
    if (!plan.shards_weights()) continue;
    const auto want = train_ranks(plan, run.data(), {.steps = 1});
    for (const Plan& each : {plan, without_prefetch(plan)}) {
      const auto have = train_ranks(each, run.data(), {.steps = 1, .prepare = corrupting(1)});
      EXPECT_NE(first_difference(each, have, plan, want, {}), "") << name;
    }
  }
}

// Two stages on each of two ranks, and four microbatches in an order that differs from their numbers in every stage,
// in forward and in backward. The last stage runs two forwards before the first backward, which is not of the first.
constexpr const char* kUnusualOrder =
    "0F1,0F0,0F3,3F1,3F0,3B0,0F2,3F3,3B3,3B1,0B0,3F2,3B2,0B3,0B1,0B2\n"
    "1F1,1F0,2F1,2F0,1F3,2F3,2B0,1B0,1F2,2B3,2F2,2B1,1B3,1B1,2B2,1B2\n";
// One microbatch, whose weight gradients come after all backwards for inputs, in another order than these.
constexpr const char* kOneMicrobatch = "0F0,3F0,3I0,0I0,3W0,0W0\n1F0,2F0,2I0,1I0,1W0,2W0\n";

struct OwnOrder {
  std::string name, csv, batch;
};
const std::vector<OwnOrder> kOwnOrders = {{"four microbatches", kUnusualOrder, "training.local_batch_size=1"},
                                          {"one microbatch", kOneMicrobatch, "training.local_batch_size=4"}};

TEST(ZeroOverlap, AnUnusualOrderOfAFileHasTheNumbersOfStageZero) {
  const TempFolder folder;
  for (const OwnOrder& order : kOwnOrders) {
    const TinyRun run({"training.dtype=float64", kBatch[0], kFourLayers, order.batch});
    const std::string file = folder.write("own.csv", order.csv);
    for (const Words& more : {Words{}, Words{kTied}}) {
      const Words keys = pipeline(file, 2, with(more, {kDataOfTwo}));
      const Plan whole = run.plan(4, keys);
      const auto want = train_ranks(whole, run.data(), {.steps = 4});
      for (const auto& [name, stage] : kStages2And3) {
        const std::string what = order.name + ", " + name;
        const Plan plan = run.plan(4, with(keys, stage));
        EXPECT_EQ(has_the_order_of_stage_0(plan), order.name == "one microbatch" || name == "stage 3, step") << what;
        const auto have = train_ranks(plan, run.data(), {.steps = 4});
        EXPECT_EQ(first_difference_from_stage_0(plan, have, whole, want), "") << what;
        for (size_t rank = 0; rank < have.size(); ++rank) {
          EXPECT_EQ(have[rank].last().traffic, planned_traffic(plan, rank)) << what;
        }
      }
    }
  }
}

// The control: the comparison sees one corrupted weight, also within the bounds for another order of sums.
TEST(ZeroOverlap, ACorruptedWeightInAnUnusualOrderIsSeen) {
  const TempFolder folder;
  const TinyRun run({"training.dtype=float64", kBatch[0], kFourLayers, kOwnOrders[0].batch});
  const Words keys = pipeline(folder.write("own.csv", kUnusualOrder), 2, {kDataOfTwo});
  const Plan whole = run.plan(4, keys);
  const auto want = train_ranks(whole, run.data(), {.steps = 1});
  for (const auto& [name, stage] : kStages2And3) {
    const Plan plan = run.plan(4, with(keys, stage));
    if (!plan.shards_weights()) continue;
    size_t block = 0;
    while (plan.parameters[block].name != "model.layers.1.mlp.down_proj.weight") ++block;
    const int rank = plan.mesh.rank_at(plan.mesh.rank_at(0, kPipeline, plan.owner_of(block)), kData, 1);
    const auto have = train_ranks(plan, run.data(), {.steps = 1, .prepare = corrupting(rank)});
    EXPECT_NE(first_difference_from_stage_0(plan, have, whole, want), "") << name;
  }
}

/// The largest relative error of the first step's gradients and weights of all ranks together.
double error_of_first_step(const Plan& have_plan, const std::vector<RankTrace>& have, const Plan& want_plan,
                           const std::vector<RankTrace>& want) {
  const StepTrace a = put_together(have_plan, have, 0), b = put_together(want_plan, want, 0);
  return std::max({relative_error(a.gradients, b.gradients), relative_error(a.weights, b.weights),
                   relative_error(a.loss, b.loss), relative_error(a.norm, b.norm)});
}

// Schedules have the same bits if gradients are reduced once a step. If each microbatch is reduced, two microbatches of
// the head may share a reduction in one schedule and not in another: forwards write its gradients, and a reduction
// follows the W. The sums then have another order. The control corrupts a weight.
TEST(ZeroOverlap, SchedulesHaveTheSameNumbers) {
  const TinyRun run({"training.dtype=float64", "training.local_batch_size=1", kBatch[0], kFourLayers});
  for (const auto& [name, stage] : kStages2And3) {
    const Plan plan = run.plan(4, pipeline("1f1b", 2, with(stage, {kDataOfTwo})));
    const double bound = has_the_order_of_stage_0(plan) ? 0 : float64_bounds(plan).first_gradients;
    const auto want = train_ranks(plan, run.data(), {.steps = 1});
    for (const char* schedule : {"zb_v", "gpipe", "interleaved_1f1b"}) {
      const Plan other = run.plan(4, pipeline(schedule, 2, with(stage, {kDataOfTwo})));
      const auto have = train_ranks(other, run.data(), {.steps = 1});
      EXPECT_LE(error_of_first_step(other, have, plan, want), bound) << name << ", " << schedule;
    }
    if (!plan.shards_weights()) continue;
    const auto wrong = train_ranks(plan, run.data(), {.steps = 1, .prepare = corrupting(1)});
    EXPECT_GT(error_of_first_step(plan, wrong, plan, want), kSeenInAGradient) << name;
  }
}

}  // namespace
}  // namespace orthant::zero_overlap_test
