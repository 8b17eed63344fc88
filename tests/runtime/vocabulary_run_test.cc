// The work besides the steps of a run whose vocabulary is sharded over a pipeline: validation, the search for values
// that are not finite, checkpoints and verify. sample_test.cc tests the sampled text.
#include <gtest/gtest.h>

#include "runtime/verify.h"
#include "tests/support/pipelines.h"
#include "tests/support/says.h"
#include "tests/support/spoiled_weights.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/whole_runs.h"

namespace orthant::vocabulary_run_test {
namespace {

const std::string kDataOfTwo = "parallelism.data_parallel_degree=2", kTied = "model.tie_word_embeddings=true";

Words deep(const Words& more = {}) {
  Words words = kDeep;
  words.push_back(kBatch[0]);
  words.push_back("model.vocab_size=301");
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<TensorCut> cuts() {
  return {{2, cut("algorithm_2", "1f1b", 2)},
          {3, cut("algorithm_1", "interleaved_1f1b", 3)},
          {4, cut("naive", "zb_v", 4)},
          {4, cut("algorithm_2", "v_min", 2, {kDataOfTwo})},
          {4, cut("algorithm_1", "zb_h1", 2, {kWithRing})},
          {2, cut("interlaced", "1f1b", 2)}};
}

SWEEP_TEST(VocabularyRun, ValidatesAsOneRank) {
  for (const Words& more : {Words{}, Words{kTied, "model.dropout=0.1"}}) {
    const TinyRun run(deep(more));
    expect_validates_as_one_rank(run, sweep.of(cuts(), 2));
  }
}

// The first rank sends every microbatch before its first S. The last rank, which is much slower, must not wait for that
// S before it receives. The test uses Gloo, where no send completes before its receive.
TEST(VocabularyRun, ValidatesWhereForwardsAreFarAhead) {
  const TinyRun run({"model.num_hidden_layers=8", "training.local_batch_size=1", "training.global_batch_size=16",
                     "model.vocab_size=301"});
  const Session::Validation one = validate_ranks(run.plan(1), run.data())[0];
  ASSERT_GT(one.labels, 16 * run.plan(1).config.training.seq_len);
  for (const std::string& order : kOrders) {
    for (const char* schedule : {"gpipe", "1f1b"}) {
      const Words keys = cut(order, schedule, 2, {"parallelism.pipeline_parallel_layers=1,7", "run.transport=gloo"});
      for (const auto& have : validate_ranks(run.plan(2, keys), run.data())) {
        EXPECT_LT(relative_error(have.nats, one.nats), 1e-10) << order << ", " << schedule;
      }
    }
  }
}

SWEEP_TEST(VocabularyRun, GoesOnOverOtherRanks) {
  for (const Words& more : {Words{}, Words{kTied}}) {
    const TinyRun run(deep(more));
    std::vector<TensorCut> in_turn = {{1, {}}};
    for (const TensorCut& cut : sweep.of(cuts(), 3)) in_turn.push_back(cut);
    in_turn.push_back({3, pipeline("1f1b", 3)});
    in_turn.push_back({1, {}});
    expect_goes_on(run, in_turn);
  }
}

TEST(VocabularyRun, NamesWhatIsNotFinite) {
  const std::string up = "model.layers.1.mlp.up_proj.weight", gate = "model.layers.1.mlp.gate_proj.weight";
  const Words two = cut("algorithm_2", "1f1b", 2);
  const Seen forward = seen(two, [&](Weights& w) { fill(w, up, 1e30), fill(w, gate, 1e30); });
  EXPECT_EQ(forward.first, 0);
  EXPECT_EQ(forward.what[0], "the output of swiglu");
  // Finite weights whose logits overflow float32.
  const Seen loss = seen(two, [](Weights& w) { fill(w, "lm_head.weight", 1e38), fill(w, "model.norm.weight", 1e3); });
  EXPECT_EQ(loss.first, 1);
  EXPECT_EQ(loss.what[1], "the loss");
  EXPECT_EQ(seen(two, [](Weights&) {}).what, std::vector<std::string>(2));
}

SWEEP_TEST(VocabularyRun, VerifyAcceptsWhatIsRight) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(deep({fmt::format("training.dtype={}", dtype), kTied}));
    expect_verified(run, sweep.of(cuts(), 2), dtype);
  }
}

SWEEP_TEST(VocabularyRun, VerifyCatchesShiftedRows) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(deep({fmt::format("training.dtype={}", dtype)}));
    for (const TensorCut& cut : sweep.of(std::vector<TensorCut>{cuts()[0], cuts()[2]}, 2)) {
      const VerifyReport report = verify_with_fault(run.plan(cut.ranks, cut.keys), run.data(), 1, Fault::shifted_rows);
      EXPECT_FALSE(report.ok) << dtype << ", " << cut.name();
      EXPECT_GT(report.gradients.relative_error, kSeenInAGradient) << dtype << ", " << cut.name();
      EXPECT_TRUE(says(report.first_difference, {"step 1", "the gradient of", "model.embed_tokens.weight"})) << dtype;
    }
  }
}

}  // namespace
}  // namespace orthant::vocabulary_run_test
