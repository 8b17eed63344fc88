// Training runs with Linformer's projections sharded over the ring: every number equals one rank's within 1e-10, and
// each rank holds its own rows alone. Checkpoints hold all rows, and the planned bytes are sent and held.
#include <gtest/gtest.h>

#include "advice/explain.h"
#include "advice/plan_json.h"
#include "base/errors.h"
#include "runtime/verify.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/thread_memory.h"
#include "tests/support/tiny_run.h"

namespace orthant::linformer_test {
namespace {

const std::vector<std::string> kModel = {"model.objective=masked", "model.linformer_length=5"};

struct Cut {
  int ulysses, ring, data;
  std::vector<std::string> more = {};

  int ranks() const { return ulysses * ring * data; }
  std::vector<std::string> overrides() const {
    std::vector<std::string> all = {fmt::format("parallelism.context_parallel_ulysses={}", ulysses)};
    if (ring > 1) {
      all.push_back(fmt::format("parallelism.context_parallel_ring={}", ring));
      all.push_back("parallelism.context_parallel_attention=linformer");
      all.push_back("parallelism.context_parallel_placement=contiguous");
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string name() const { return fmt::format("ulysses {}, ring {}, data {}", ulysses, ring, data); }
};

std::vector<Cut> cuts() {
  return {{1, 1, 2},
          {1, 2, 1},
          {1, 3, 1},
          {1, 4, 1},
          {1, 2, 2},
          {1, 3, 2},
          {2, 1, 1},
          {2, 2, 1},
          {2, 3, 1},
          {1, 3, 2, {"parallelism.bucket_mib=0.005"}},
          {1, 2, 1, {"activation_checkpoint.mode=full"}}};
}

SWEEP_TEST(LinformerRuns, HaveOneRanksNumbers) {
  const TinyRun run(kModel);
  const auto want = train_ranks(run.plan(1), run.data())[0];
  for (const Cut& cut : sweep.of(cuts(), 3)) {
    const Plan plan = run.plan(cut.ranks(), cut.overrides());
    const auto ranks = train_ranks(plan, run.data());
    for (int rank = 0; rank < cut.ranks(); ++rank) {
      const RankTrace& have = ranks[static_cast<size_t>(rank)];
      for (size_t step = 0; step < want.steps.size(); ++step) {
        const StepTrace &h = have.steps[step], &w = want.steps[step];
        EXPECT_LT(relative_error(h.loss, w.loss), 1e-10) << cut.name();
        EXPECT_LT(relative_error(h.norm, w.norm), 1e-10) << cut.name();
        EXPECT_EQ(h.norm, ranks[0].steps[step].norm) << "weights that all hold would drift apart";
        const NamedError gradient = worst_parameter(plan, h.gradients, w.gradients, rank);
        EXPECT_LT(gradient.error, 1e-10) << cut.name() << ", rank " << rank << ": " << gradient.name;
        const NamedError weight = worst_parameter(plan, h.weights, w.weights, rank);
        EXPECT_LT(weight.error, 1e-10) << cut.name() << ", rank " << rank << ": " << weight.name;
      }
    }
  }
}

SWEEP_TEST(LinformerRuns, SendWhatThePlanSays) {
  const TinyRun run(kModel);
  for (const Cut& cut : sweep.of(cuts(), 3)) {
    const Plan plan = run.plan(cut.ranks(), cut.overrides());
    const auto ranks = train_ranks(plan, run.data(), {.steps = 1});
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank)) << cut.name() << ", rank " << rank;
    }
  }
}

SWEEP_TEST(LinformerRuns, ValidateAlikeWhereTheLastSampleIsShort) {
  const TinyRun run(kModel);
  const auto& held_out = run.data().validation[0].samples;
  ASSERT_FALSE(held_out.batch(held_out.num_samples() - 1, 1).lengths.empty()) << "else there is no padding to see";
  const double one = validate_ranks(run.plan(1), run.data())[0].nats;
  for (const Cut& cut : sweep.of(std::vector<Cut>{Cut{1, 2, 1}, Cut{1, 3, 1}, Cut{2, 2, 1}, Cut{1, 2, 2}}, 2)) {
    for (const auto& sums : validate_ranks(run.plan(cut.ranks(), cut.overrides()), run.data()))
      EXPECT_LT(relative_error(sums.nats, one), 1e-12) << cut.name();
  }
}

// Bytes of the rank's weights, gradients and moments, counted by the allocator.
int64_t state_bytes(const Plan& plan, int rank) {
  ThreadMemory::install();
  const int64_t before = ThreadMemory::now();
  Weights weights(plan.parameters_of(rank), scalar_type(plan.config.training.dtype));
  const Optimizer optimizer(weights, {});
  return ThreadMemory::now() - before;
}

TEST(LinformerRuns, ARanksBytesStayWhereLengthAndRingGrowTogether) {
  for (const char* dtype : {"float64", "bfloat16"}) {
    const auto keys = [&](int64_t length) {
      std::vector<std::string> all = kModel;
      all.push_back(fmt::format("training.seq_len={}", length));
      all.push_back(fmt::format("training.dtype={}", dtype));
      all.push_back("model.max_position_embeddings=512");
      return all;
    };
    const TinyRun shorter(keys(128)), longer(keys(256));
    const Plan two = shorter.plan(2, Cut{1, 2, 1}.overrides()), four = longer.plan(4, Cut{1, 4, 1}.overrides());
    for (int rank = 0; rank < 4; ++rank) {
      const MemoryBytes& planned = four.memory_of(rank);
      EXPECT_EQ(state_bytes(four, rank), planned.parameters + planned.gradients + planned.optimizer);
      EXPECT_EQ(state_bytes(four, rank), state_bytes(two, 0));
      EXPECT_EQ(planned.total(), two.memory_of(0).total());
    }
    // Control: unsharded projections grow with the length, by 2 layers x 2 projections x 128 x 5 elements.
    const int64_t of_each = *dtype == 'f' ? 4 * 8 : 4 * 4 + 2;
    EXPECT_EQ(state_bytes(longer.plan(4), 0) - state_bytes(shorter.plan(4), 0), 2 * 2 * 128 * 5 * of_each);
  }
}

SWEEP_TEST(LinformerRuns, GoOnAtAnyCut) {
  const TinyRun run(kModel);
  const auto whole = train_ranks(run.plan(1), run.data(), {.steps = 6})[0];
  const std::string checkpoint = run.folder() + "/out/checkpoints/step-000003";
  for (const Cut& first : sweep.of(std::vector<Cut>{Cut{1, 3, 1}, Cut{1, 2, 2}, Cut{1, 1, 1}}, 2)) {
    const Plan before = run.plan(first.ranks(), first.overrides());
    const auto saved = train_ranks(before, run.data(), {.steps = 3, .save = true});
    for (const Cut& second : sweep.of(std::vector<Cut>{Cut{1, 1, 1}, Cut{1, 4, 1}, Cut{2, 2, 1}}, 2)) {
      const Plan plan = run.plan(second.ranks(), second.overrides());
      const auto resumed = train_ranks(plan, run.data(), {.steps = 6, .resume_from = checkpoint});
      for (int rank = 0; rank < second.ranks(); ++rank) {
        const auto& have = resumed[static_cast<size_t>(rank)];
        EXPECT_LT(worst_parameter(plan, have.last().weights, whole.last().weights, rank).error, 1e-10);
        for (size_t s = 0; s < whole.optimizer_state.size(); ++s) {
          EXPECT_LT(worst_parameter(plan, have.optimizer_state[s], whole.optimizer_state[s], rank).error, 1e-10);
        }
      }
    }
    // With the same layout, the resumed run equals the uninterrupted one in every bit.
    const auto straight = train_ranks(before, run.data(), {.steps = 6});
    const auto resumed = train_ranks(before, run.data(), {.steps = 6, .resume_from = checkpoint});
    for (size_t rank = 0; rank < straight.size(); ++rank) {
      EXPECT_TRUE(resumed[rank].last().weights.equal(straight[rank].last().weights));
    }
  }
}

TEST(LinformerRuns, AreNotResumedWithOtherProjections) {
  const TinyRun run(kModel);
  train_ranks(run.plan(1), run.data(), {.steps = 1, .save = true});
  const std::string checkpoint = run.folder() + "/out/checkpoints/step-000001";
  for (const char* other : {"model.linformer_length=4", "model.linformer_length=0"}) {
    try {
      train_ranks(run.plan(1, {other}), run.data(), {.steps = 2, .resume_from = checkpoint});
      FAIL() << other;
    } catch (const ConfigError& error) {
      EXPECT_TRUE(says(error.what(), {"model.linformer_length", "has 5"}));
    }
  }
}

TEST(LinformerRuns, VerifyAcceptsThemAndSeesProjectionsReducedOverTheRing) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    auto keys = kModel;
    keys.push_back(fmt::format("training.dtype={}", dtype));
    const TinyRun run(keys);
    const Cut cut{1, 2, 2};
    Plan plan = run.plan(cut.ranks(), cut.overrides());
    const VerifyReport right = verify_layout(plan, run.data(), 2);
    EXPECT_TRUE(right.ok) << dtype << ": " << right.first_difference;
    EXPECT_FALSE(verify_with_fault(plan, run.data(), 2, Fault::stray_mean).ok);
    int changed = 0;
    for (GradientBucket& bucket : plan.buckets) {
      if (bucket.axes == plan.gradient_axes) continue;
      bucket.axes = plan.gradient_axes;
      ++changed;
    }
    ASSERT_GT(changed, 0);
    const VerifyReport wrong = verify_layout(plan, run.data(), 2);
    EXPECT_FALSE(wrong.ok);
    EXPECT_TRUE(says(wrong.first_difference, {"the gradient of model.layers.0.self_attn.linformer_k, layer 0"}));
  }
}

// With few keys, the gradients of queries and keys are small differences. Without the oracle's own rounding errors,
// verify refused some of these layouts.
TEST(LinformerRuns, VerifyAllowsTheRoundingErrorsOfFewKeys) {
  auto keys = kModel;
  keys.insert(keys.end(), {"training.dtype=bfloat16", "model.linformer_length=2"});
  const TinyRun run(keys);
  int beyond_the_bound = 0;
  for (const int seed : {1, 2, 3, 4}) {
    const Plan plan = run.plan(2, {"parallelism.tensor_parallel_degree=2", fmt::format("training.seed={}", seed)});
    OracleTrace oracle = trace_oracle(plan, run.data(), 2);
    const VerifyReport right = verify_against(oracle, plan, run.data());
    EXPECT_TRUE(right.ok) << seed << ": " << right.first_difference;
    const auto halved = [](const Plan& own, Comm& comm) {
      SessionParts parts = session_parts(own, comm);
      // The matrix of queries, keys and values.
      parts.primitives = with_scaled_matrix_gradients(std::move(parts.primitives), [&own](const Weight& weight) {
        const size_t first = weight.owner->flat().members[static_cast<size_t>(weight.index)].first;
        return own.parameters[first].name.find("self_attn.q_proj") == std::string::npos ? 1.0 : 0.5;
      });
      return parts;
    };
    EXPECT_FALSE(verify_against(oracle, plan, run.data(), {}, halved).ok) << seed;
    oracle.rounding_errors.clear();
    if (!verify_against(oracle, plan, run.data()).ok) ++beyond_the_bound;
  }
  EXPECT_GT(beyond_the_bound, 0);
}

TEST(LinformerRuns, AreExplained) {
  const TinyRun run(kModel);
  const Plan plan = run.plan(4, Cut{1, 2, 2}.overrides());
  EXPECT_TRUE(says(explain(plan, Sections::all()),
                   {"split    [S(ring), -]: 4 tensors, the first model.layers.0.self_attn.linformer_k",
                    "attention, summaries, forward", "loss, gradient norm, signals and peak memory",
                    "not compared: Linformer computes another function"}));
  EXPECT_TRUE(says(plan_json(plan, Sections::all()), {"\"layout\": \"[S(ring), -]\""}));
  EXPECT_TRUE(says(explain(run.plan(2), Sections::all()), {"every rank holds all parameters"}));
}

TEST(LinformerRuns, AreRefusedInWords) {
  const auto refusal = [](std::vector<std::string> keys, std::vector<std::string> cut = {}) {
    try {
      const TinyRun run(keys);
      run.plan(cut.empty() ? 1 : 2, cut);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const std::string length = "model.linformer_length=5", masked = "model.objective=masked";
  const std::string ring = "parallelism.context_parallel_ring=2",
                    both = "parallelism.context_parallel_attention=linformer";
  EXPECT_TRUE(says(refusal({length}), {"model.linformer_length = 5", "model.objective = \"causal\"", "\"masked\""}));
  EXPECT_TRUE(says(refusal({masked, "model.linformer_length=17"}), {"training.seq_len = 16", "; set it to 16"}));
  EXPECT_TRUE(says(refusal({masked, length, "model.sliding_window=4"}), {"model.sliding_window = 4", "set it to 0"}));
  EXPECT_TRUE(says(refusal({masked, length, "data.mask_documents=true"}), {"data.mask_documents", "set it to false"}));
  EXPECT_TRUE(says(refusal({masked, length}, {ring}), {"context_parallel_attention to \"linformer\""}));
  EXPECT_TRUE(
      says(refusal({masked, length}, {ring, both}), {"context_parallel_placement", "set it to \"contiguous\""}));
  EXPECT_TRUE(says(refusal({masked}, {ring, both}), {"context_parallel_attention", "model.linformer_length = 0"}));
  EXPECT_TRUE(says(refusal({masked, length}, {ring, both, "parallelism.context_parallel_placement=contiguous",
                                              "parallelism.context_parallel_window=2"}),
                   {"context_parallel_window = 2", "requires ring_attention", "set it to 0"}));
  EXPECT_EQ(refusal({masked, length}, {ring, both, "parallelism.context_parallel_placement=contiguous"}), "accepted");
}

}  // namespace
}  // namespace orthant::linformer_test
