// Recomputation changes no bit of a run and sends the planned bytes, on every kind of layout. The control shows that
// the plan of another set of operations states other bytes.
#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/support/pipelines.h"
#include "tests/support/recomputations.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::runtime_recompute_test {
namespace {

const TinyRun& run_of(const std::string& dtype) {
  const Words deep = {"model.num_hidden_layers=4", "model.dropout=0.1", "training.global_batch_size=8",
                      "training.local_batch_size=2"};
  static const TinyRun narrow(with(deep, {"training.dtype=bfloat16"})), wide(with(deep, {"training.dtype=float32"}));
  return dtype == "bfloat16" ? narrow : wide;
}

const std::string p = "parallelism.";
const Words kFull = {"activation_checkpoint.mode=full"};

std::vector<TensorCut> layouts() {
  return {{1, {}},
          {2, {p + "data_parallel_degree=2", p + "zero_stage=3", p + "zero_reshard=microbatch"}},
          {2, {"optimizer.in_backward=true", "training.max_norm=0", "training.local_batch_size=8"}},
          one_dimension(2),
          one_dimension(2, {kNoSequence}),
          one_dimension(2, {kWithRing}, 2),
          grid(2, 2, 1),
          grid(2, 2, 1, {kSumma}),
          {2, {kWithRing}},
          {2, {kWithRing, p + "context_parallel_attention=ring_self_attention"}},
          {4, {kWithRing, kWithUlysses}},
          {2, pipeline("zb_h1", 2)},
          {2, pipeline("zb_v", 2)},
          {4, pipeline("interleaved_1f1b", 2, {tensor_key("degree", "2")})},
          {4, pipeline("zb_h2", 2, {kWithRing})},
          {2, pipeline("v_half", 2, {p + "vocabulary_parallel=algorithm_2"})}};
}

std::vector<Words> settings() {
  return {selective({"norms", "swiglu"}), selective({"attention"}), selective({"norms", "mlp"}, 2),
          selective({"norms", "attention", "mlp"}), kFull};
}

void expect_planned_traffic(const Plan& plan, const std::vector<RankTrace>& ranks, const std::string& what) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank)) << what << ", rank " << rank;
  }
}

void expect_same_run(const TinyRun& run, const TensorCut& layout, const std::vector<Words>& recomputations) {
  const Plan plan = run.plan(layout.ranks, layout.keys);
  const std::vector<RankTrace> kept = train_ranks(plan, run.data(), {.steps = 2});
  expect_planned_traffic(plan, kept, layout.name());
  for (const Words& words : recomputations) {
    const std::string what = layout.name() + ", " + join(words, " ");
    const Plan recomputing = run.plan(layout.ranks, with(layout.keys, words));
    const std::vector<RankTrace> have = train_ranks(recomputing, run.data(), {.steps = 2});
    expect_planned_traffic(recomputing, have, what);
    for (size_t rank = 0; rank < kept.size(); ++rank) {
      for (size_t step = 0; step < kept[rank].steps.size(); ++step) {
        expect_same_bits(have[rank].steps[step], kept[rank].steps[step], what);
      }
    }
  }
}

SWEEP_TEST(Recompute, ChangesNoBitAndSendsThePlannedBytes) {
  for (const TensorCut& layout : sweep.of(layouts(), 16)) {
    expect_same_run(run_of("float32"), layout, sweep.of(settings(), 3));
  }
}

SWEEP_TEST(Recompute, ChangesNoBitInBfloat16) {
  for (const TensorCut& layout : sweep.of(layouts(), 4)) {
    expect_same_run(run_of("bfloat16"), layout, sweep.of(settings(), 3));
  }
}

int64_t sent(const Plan& plan, const std::string& part) {
  int64_t bytes = 0;
  for (const CommunicationEntry& entry : plan.communication) {
    if (entry.what.find(part) != std::string::npos) bytes += plan.bytes_of(entry, 0);
  }
  return bytes;
}

// The block's forward gathers or sums the stream 4 times with sequence parallelism. Ranges do not repeat their last
// product: whole blocks repeat 3 of 4, the MLP 1, and norms with their projections none.
TEST(Recompute, RepeatsTheMessagesOfAllButTheLastProducts) {
  const TensorCut layout = one_dimension(2);
  const auto repeated = [&](const Words& words) {
    const Plan plan = run_of("float32").plan(2, with(layout.keys, words));
    return static_cast<double>(sent(plan, "blocks recomputed")) / static_cast<double>(sent(plan, "blocks forward"));
  };
  EXPECT_EQ(repeated({}), 0);
  EXPECT_EQ(repeated(selective({"norms", "swiglu", "attention"})), 0);
  EXPECT_EQ(repeated(selective({"mlp"})), 0.25);
  EXPECT_EQ(repeated(selective({"norms", "mlp"})), 0.25);
  EXPECT_EQ(repeated(selective({"mlp"}, 2)), 0.125);
  EXPECT_EQ(repeated(kFull), 0.75);
}

// A ring repeats attention's forward only where attention is recomputed.
TEST(Recompute, RepeatsTheMessagesOfAttentionOnlyWithAttention) {
  const auto forward = [&](const Words& words) {
    return sent(run_of("float32").plan(2, with({kWithRing}, words)), "forward");
  };
  const int64_t once = forward({});
  EXPECT_GT(once, 0);
  EXPECT_EQ(forward(selective({"norms", "mlp"})), once);
  EXPECT_EQ(forward(selective({"attention"})), 2 * once);
  EXPECT_EQ(forward(selective({"attention"}, 4)), once + once / 4);
  EXPECT_EQ(forward(kFull), 2 * once);
}

// Weights are gathered for a block's backward, in which its operations run again.
TEST(Recompute, GathersNothingMore) {
  const TinyRun& run = run_of("float32");
  const TensorCut layout = layouts()[1];
  for (const Words& words : settings()) {
    for (const size_t rank : {0, 1}) {
      EXPECT_EQ(planned_traffic(run.plan(2, with(layout.keys, words)), rank),
                planned_traffic(run.plan(2, layout.keys), rank))
          << join(words, " ");
    }
  }
}

// The control: the bytes of a run differ from those of a plan that recomputes other operations.
TEST(Recompute, AnotherPlansBytesAreSeen) {
  const TinyRun& run = run_of("float32");
  const TensorCut layout = one_dimension(2);
  const auto have = train_ranks(run.plan(2, with(layout.keys, selective({"mlp"}))), run.data(), {.steps = 1});
  EXPECT_FALSE(have[0].last().traffic == planned_traffic(run.plan(2, layout.keys), 0));
  EXPECT_FALSE(have[0].last().traffic == planned_traffic(run.plan(2, with(layout.keys, kFull)), 0));
}

}  // namespace
}  // namespace orthant::runtime_recompute_test
