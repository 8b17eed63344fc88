// What a run does beside its steps where the vocabulary is cut over a pipeline: validation, samples, what is no number,
// checkpoints, verify.
#include <gtest/gtest.h>

#include "runtime/sample.h"
#include "runtime/verify.h"
#include "tests/support/pipelines.h"
#include "tests/support/says.h"
#include "tests/support/spoiled_weights.h"
#include "tests/support/tensor_cuts.h"

namespace orthant {
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
          {4, cut("algorithm_1", "zb_h1", 2, {kRing})},
          {2, cut("interlaced", "1f1b", 2)}};
}

TEST(VocabularyRun, ValidatesAsOneRank) {
  for (const Words& more : {Words{}, Words{kTied, "model.dropout=0.1"}}) {
    const TinyRun run(deep(more));
    const Session::Validation one = validate_ranks(run.plan(1), run.data())[0];
    for (const TensorCut& cut : cuts()) {
      for (const auto& have : validate_ranks(run.plan(cut.ranks, cut.keys), run.data(), 1)) {
        EXPECT_LT(relative_error(have.nats, one.nats), 1e-10) << cut.name();
        EXPECT_EQ(have.labels, one.labels) << cut.name();
        EXPECT_EQ(have.bytes, one.bytes) << cut.name();
      }
    }
  }
}

TEST(VocabularyRun, GoesOnOverOtherRanks) {
  for (const Words& more : {Words{}, Words{kTied}}) {
    const TinyRun run(deep(more));
    const auto want = train_ranks(run.plan(1), run.data(), {.steps = 4})[0];
    std::vector<TensorCut> in_turn = {{1, {}}};
    for (const TensorCut& cut : cuts()) in_turn.push_back(cut);
    in_turn.push_back({3, pipeline("1f1b", 3)});
    in_turn.push_back({1, {}});
    for (size_t i = 0; i + 1 < in_turn.size(); ++i) {
      train_ranks(run.plan(in_turn[i].ranks, in_turn[i].keys), run.data(), {.steps = 2, .save = true});
      const Plan next = run.plan(in_turn[i + 1].ranks, in_turn[i + 1].keys);
      const auto have = train_ranks(next, run.data(),
                                    {.steps = 4, .resume_from = run.folder() + "/out/checkpoints/step-000002"});
      for (size_t rank = 0; rank < have.size(); ++rank) {
        const NamedError weight =
            worst_parameter(next, have[rank].last().weights, want.last().weights, static_cast<int>(rank));
        EXPECT_LT(weight.error, 1e-10) << weight.name << ", " << in_turn[i].name() << " then " << in_turn[i + 1].name();
      }
    }
  }
}

// Texts of all ranks, from the seed's weights.
std::vector<std::string> written(const Plan& plan, const TinyRun& run, bool masked) {
  std::vector<std::string> texts(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& meeting, int rank) {
    Comm comm(plan.mesh, rank, meeting, {.timeout_s = 20});
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    const auto r = static_cast<size_t>(rank);
    if (masked) texts[r] = filled_text(session.weights(), plan, run.data(), comm);
    const bool first_copy = plan.first_like(rank) == rank;
    if (!masked && first_copy) texts[r] = sample_text(session.weights(), plan, run.data(), comm);
    if (!masked && !first_copy) texts[r] = "";
  });
  return texts;
}

TEST(VocabularyRun, WritesTheSameText) {
  for (const bool masked : {false, true}) {
    const TinyRun run(deep(masked ? Words{"model.objective=masked"} : Words{kTied}));
    const std::string one = written(run.plan(1), run, masked)[0];
    EXPECT_GT(one.size(), 20u);
    for (const TensorCut& cut : cuts()) {
      for (const std::string& text : written(run.plan(cut.ranks, cut.keys), run, masked)) {
        EXPECT_TRUE(text == one || (text.empty() && !masked)) << cut.name() << ": " << text;
      }
    }
  }
}

TEST(VocabularyRun, NamesWhatIsNotFinite) {
  const std::string up = "model.layers.1.mlp.up_proj.weight", gate = "model.layers.1.mlp.gate_proj.weight";
  const Words two = cut("algorithm_2", "1f1b", 2);
  const Seen forward = seen(two, [&](Weights& w) { fill(w, up, 1e30), fill(w, gate, 1e30); });
  EXPECT_EQ(forward.first, 0);
  EXPECT_EQ(forward.what[0], "the output of SwiGLU");
  // Logits beyond float32, of numbers that are not.
  const Seen loss = seen(two, [](Weights& w) { fill(w, "lm_head.weight", 1e38), fill(w, "model.norm.weight", 1e3); });
  EXPECT_EQ(loss.first, 1);
  EXPECT_EQ(loss.what[1], "the loss");
  EXPECT_EQ(seen(two, [](Weights&) {}).what, std::vector<std::string>(2));
}

TEST(VocabularyRun, VerifyAcceptsWhatIsRight) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(deep({fmt::format("training.dtype={}", dtype), kTied}));
    for (const TensorCut& cut : cuts()) {
      const VerifyReport report = verify_layout(run.plan(cut.ranks, cut.keys), run.data(), 2);
      EXPECT_TRUE(report.ok) << dtype << ", " << cut.name() << ": " << report.first_difference;
    }
  }
}

TEST(VocabularyRun, VerifyCatchesShiftedRows) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(deep({fmt::format("training.dtype={}", dtype)}));
    for (const TensorCut& cut : {cuts()[0], cuts()[2]}) {
      const VerifyReport report = verify_layout(run.plan(cut.ranks, cut.keys), run.data(), 1, Mutation::shifted_rows);
      EXPECT_FALSE(report.ok) << dtype << ", " << cut.name();
      EXPECT_GT(report.gradients.relative_error, kSeenInAGradient) << dtype << ", " << cut.name();
      EXPECT_TRUE(says(report.first_difference, {"step 1", "the gradient of", "model.embed_tokens.weight"})) << dtype;
    }
  }
}

}  // namespace
}  // namespace orthant
