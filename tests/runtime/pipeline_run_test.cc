// The work of a pipeline run besides its steps: validation, the search for values that are not finite, checkpoints and
// verify. Planted mistakes are the negative controls of verify.
#include <gtest/gtest.h>

#include "runtime/verify.h"
#include "tests/support/pipelines.h"
#include "tests/support/says.h"
#include "tests/support/spoiled_weights.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/whole_runs.h"

namespace orthant::pipeline_run_test {
namespace {

const std::string kDataOfTwo = "parallelism.data_parallel_degree=2", kTied = "model.tie_word_embeddings=true";

Words deep(const Words& more = {}) {
  Words words = kDeep;
  words.push_back(kBatch[0]);
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<TensorCut> cuts() {
  return {{2, pipeline("1f1b", 2)},
          {3, pipeline("interleaved_1f1b", 3)},
          {4, pipeline("zb_v", 4)},
          {4, pipeline("v_min", 2, {kDataOfTwo})},
          {4, pipeline("zb_h1", 2, {kWithRing})},
          grid(2, 1, 1, pipeline("zb_h2", 2), 2),
          grid(2, 2, 2, pipeline("zb_v", 2), 2),
          one_dimension(2, pipeline("v_half", 2, {kDataOfTwo}), 4)};
}

// The last batch of the held-out text is incomplete. A training step before validation leaves nothing behind.
SWEEP_TEST(PipelineRun, ValidatesAsOneRank) {
  for (const Words& more : {Words{}, Words{kTied, "model.dropout=0.1"}}) {
    const TinyRun run(deep(more));
    EXPECT_NE(validate_ranks(run.plan(1), run.data())[0].labels % (8 * 16), 0);
    expect_validates_as_one_rank(run, sweep.of(cuts(), 2));
  }
}

SWEEP_TEST(PipelineRun, GoesOnOverOtherStages) {
  for (const Words& more : {Words{}, Words{kTied}}) {
    const TinyRun run(deep(more));
    std::vector<TensorCut> in_turn = {{1, {}}};
    for (const TensorCut& cut : sweep.of(cuts(), 3)) in_turn.push_back(cut);
    in_turn.push_back({1, {}});
    expect_goes_on(run, in_turn);
  }
}

TEST(PipelineRun, NamesWhatIsNotFiniteOnWhicheverStage) {
  for (const char* schedule : {"1f1b", "zb_v"}) {
    const std::string up = "model.layers.1.mlp.up_proj.weight", gate = "model.layers.1.mlp.gate_proj.weight";
    // Layer 1 is on the first rank of 1F1B, but on the last rank of a V schedule.
    const int owner = schedule == std::string("1f1b") ? 0 : 1;
    const Seen weight = seen(pipeline(schedule, 2), [&](Weights& w) { fill(w, up, NAN); });
    EXPECT_EQ(weight.first, owner) << schedule;
    EXPECT_EQ(weight.what[static_cast<size_t>(owner)], "the weight " + up);
    const Seen forward = seen(pipeline(schedule, 2), [&](Weights& w) { fill(w, up, 1e30), fill(w, gate, 1e30); });
    EXPECT_EQ(forward.first, owner) << schedule;
    EXPECT_EQ(forward.what[static_cast<size_t>(owner)], "the output of swiglu");
    EXPECT_NE(forward.what[static_cast<size_t>(1 - owner)], "") << "what comes out of it goes on";
    EXPECT_EQ(seen(pipeline(schedule, 2), [](Weights&) {}).what, std::vector<std::string>(2));
  }
}

TEST(PipelineRun, VerifyAcceptsWhatIsRight) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(deep({fmt::format("training.dtype={}", dtype), kTied}));
    expect_verified(run, {cuts()[0], cuts()[3], cuts()[6]}, dtype);
  }
}

SWEEP_TEST(PipelineRun, VerifyCatchesMistakesOfPipelines) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(deep({fmt::format("training.dtype={}", dtype)}));
    for (const TensorCut& cut :
         sweep.of(std::vector<TensorCut>{TensorCut{2, pipeline("zb_h1", 2)}, {4, pipeline("zb_v", 4)}, cuts()[3]}, 2)) {
      for (const Fault fault : {Fault::exchanged_microbatches, Fault::lost_weight_gradients}) {
        const VerifyReport report = verify_with_fault(run.plan(cut.ranks, cut.keys), run.data(), 1, fault);
        EXPECT_FALSE(report.ok) << dtype << ", " << cut.name();
        EXPECT_GT(report.gradients.relative_error, kSeenInAGradient) << dtype << ", " << cut.name();
        // Lost weight gradients affect the weights of products only. Exchanged microbatches also affect the embedding,
        // which is no product.
        const char* first = fault == Fault::exchanged_microbatches ? "model.embed_tokens.weight"
                                                                : "model.layers.0.self_attn.q_proj.weight";
        EXPECT_TRUE(says(report.first_difference, {"step 1", "the gradient of", first})) << dtype << ", " << cut.name();
      }
    }
  }
}

}  // namespace
}  // namespace orthant::pipeline_run_test
