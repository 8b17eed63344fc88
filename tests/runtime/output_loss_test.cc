// Training runs with capped logits, label smoothing and z-loss: every layout equals one rank, and one rank equals the
// plain device. Smoothing and z-loss affect training alone. The negative control leaves the terms out.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "runtime/sample.h"
#include "runtime/verify.h"
#include "tests/support/pipelines.h"
#include "tests/support/plain_training.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::output_loss_test {
namespace {

const std::string kCapped = "model.final_logit_softcapping=3", kSmoothed = "training.label_smoothing=0.1",
                  kZ = "training.z_loss=0.01", kTied = "model.tie_word_embeddings=true", p = "parallelism.";
const std::vector<Words> kLosses = {{kCapped}, {kSmoothed}, {kZ}, {kCapped, kSmoothed, kZ}};

Words deep(const Words& loss, const Words& more = {}) {
  Words words = {"model.num_hidden_layers=4", "training.local_batch_size=1", kBatch[0], "model.vocab_size=301"};
  words.insert(words.end(), loss.begin(), loss.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Layouts whose head is unsharded, sharded over columns, on the last pipeline rank, or sharded over the pipeline.
std::vector<TensorCut> layouts() {
  std::vector<TensorCut> all = {{2, {}},
                                {4, {kWithRing, kWithUlysses}},
                                one_dimension(2),
                                one_dimension(2, {kNoSequence}),
                                grid(2, 2, 1),
                                grid(1, 2, 2),
                                grid(2, 2, 1, {kSumma}),
                                {2, pipeline("1f1b", 2)},
                                {4, pipeline("zb_v", 2, {tensor_key("degree", "2")})},
                                {2, cut("redistribution", "1f1b", 2)},
                                {2, cut("interlaced", "1f1b", 2)},
                                {4, cut("algorithm_2", "zb_h1", 2, {p + "data_parallel_degree=2"})}};
  for (const std::string& order : kOrders) {
    all.push_back({2, cut(order, "1f1b", 2)});
    all.push_back({2, cut(order, "v_half", 2, {kRecompute})});
    all.push_back({4, cut(order, "1f1b", 2, one_dimension(2).keys)});
    all.push_back({8, cut(order, "zb_h1", 2, grid(2, 2, 1).keys)});
  }
  return all;
}

TEST(OutputLosses, AreThePlainDevices) {
  for (const Words& loss : kLosses) {
    const TinyRun run(deep(loss));
    const auto have = train_ranks(run.plan(1), run.data())[0];
    const auto want = train_plain(run.plan(1), run.data(), 3);
    const auto other = train_ranks(run.plan(1), run.data(), {.fault = Fault::plain_loss})[0];
    for (size_t step = 0; step < want.size(); ++step) {
      EXPECT_LT(relative_error(have.steps[step].loss, want[step].loss), 1e-12);
      EXPECT_LT(relative_error(have.steps[step].gradients, want[step].gradients), 1e-10);
      EXPECT_LT(relative_error(have.steps[step].weights, want[step].weights), 1e-10);
      EXPECT_GT(relative_error(other.steps[step].loss, want[step].loss), kSeenInALoss) << loss[0] << " left out";
    }
  }
}

SWEEP_TEST(OutputLosses, AreOneRanksInEveryLayout) {
  for (const Words& loss : kLosses) {
    const TinyRun run(deep(loss));
    const auto one = train_ranks(run.plan(1), run.data())[0];
    for (const TensorCut& layout : sweep.of(layouts(), 3)) {
      const Plan plan = run.plan(layout.ranks, layout.keys);
      expect_equal(plan, train_ranks(plan, run.data()), one, layout.name() + ", " + loss[0]);
    }
  }
}

SWEEP_TEST(OutputLosses, OfTiedAndMaskedModels) {
  const Words all = kLosses.back();
  for (const Words& more : {Words{kTied, "model.dropout=0.1"}, Words{"model.objective=masked"}}) {
    const TinyRun run(deep(all, more));
    const auto one = train_ranks(run.plan(1), run.data())[0];
    for (const TensorCut& layout : sweep.of(
             std::vector<TensorCut>{grid(2, 2, 1), one_dimension(2), TensorCut{2, pipeline("1f1b", 2)},
                                    TensorCut{4, cut("algorithm_2", "1f1b", 4)}, TensorCut{2, cut("naive", "zb_v", 2)},
                                    TensorCut{2, cut("algorithm_1", "interleaved_1f1b", 2)}},
             2)) {
      const Plan plan = run.plan(layout.ranks, layout.keys);
      expect_equal(plan, train_ranks(plan, run.data()), one, layout.name() + ", " + more[0]);
    }
  }
}

// A batch without a label has no loss and no gradient, wherever the vocabulary is.
SWEEP_TEST(OutputLosses, OfNoLabelAreNothing) {
  for (const Words& loss : {Words{}, kLosses.back()}) {
    const TinyRun run(deep(loss, {"model.objective=masked", "model.masked_share=0.1", "training.global_batch_size=1"}));
    constexpr int64_t kSteps = 12;
    size_t none = 0;
    while (none < kSteps && run.data().train.valid_labels(static_cast<int64_t>(none), 1) > 0) ++none;
    ASSERT_LT(none, kSteps);
    std::vector<TensorCut> all = {{1, {}},
                                  {2, {}},
                                  one_dimension(2),
                                  grid(1, 2, 1),
                                  {2, pipeline("1f1b", 2)},
                                  {2, cut("redistribution", "1f1b", 2)},
                                  {2, cut("interlaced", "1f1b", 2)}};
    for (const std::string& order : kOrders) all.push_back({2, cut(order, "1f1b", 2)});
    for (const TensorCut& layout : sweep.of(all, 2)) {
      for (const RankTrace& rank : train_ranks(run.plan(layout.ranks, layout.keys), run.data(), {.steps = kSteps})) {
        EXPECT_EQ(rank.steps[none].loss, 0) << layout.name();
        EXPECT_EQ(rank.steps[none].norm, 0) << layout.name();
        EXPECT_TRUE(rank.steps[none].gradients.eq(0).all().item<bool>()) << layout.name();
        EXPECT_GT(rank.steps[none == 0 ? 1 : 0].norm, 0) << layout.name() << ": others have labels";
      }
    }
  }
}

// Validation measures the model's own cross entropy. Smoothing and z-loss change no bit of it; a cap does.
SWEEP_TEST(OutputLosses, AreNotWhatValidationMeasures) {
  const TinyRun none(deep({})), smoothed(deep({kSmoothed, kZ})), capped(deep({kCapped, kSmoothed, kZ}));
  const auto nats = [](const TinyRun& run, const TensorCut& layout) {
    return validate_ranks(run.plan(layout.ranks, layout.keys), run.data(), 1)[0].nats;
  };
  const double want = nats(none, {1, {}}), of_capped = nats(capped, {1, {}});
  EXPECT_EQ(nats(smoothed, {1, {}}), want);
  EXPECT_GT(relative_error(of_capped, want), kSeenInALoss);
  for (const TensorCut& layout : sweep.of(layouts(), 3)) {
    EXPECT_LT(relative_error(nats(smoothed, layout), want), 1e-10) << layout.name();
    EXPECT_LT(relative_error(nats(capped, layout), of_capped), 1e-10) << layout.name();
  }
}

// Every layout samples from capped logits and writes the same text.
SWEEP_TEST(OutputLosses, CapWhatIsWritten) {
  const auto written = [](const TinyRun& run, const TensorCut& layout) {
    const Plan plan = run.plan(layout.ranks, layout.keys);
    std::string text;
    run_ranks(layout.ranks, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous, {.timeout_s = 20});
      Session session(plan, run.data().train, comm);
      session.weights().initialize(3);
      const std::string own = sample_text(session, plan, run.data(), comm);
      if (rank == 0) text = own;
    });
    return text;
  };
  const TinyRun none(deep({})), capped(deep({"model.final_logit_softcapping=0.5"}));
  const std::string want = written(capped, {1, {}});
  EXPECT_NE(want, written(none, {1, {}}));
  for (const TensorCut& layout :
       sweep.of(std::vector<TensorCut>{one_dimension(2), grid(2, 2, 1), TensorCut{2, pipeline("1f1b", 2)},
                                       TensorCut{2, cut("algorithm_2", "1f1b", 2)}},
                2)) {
    EXPECT_EQ(written(capped, layout), want) << layout.name();
  }
}

SWEEP_TEST(OutputLosses, VerifyAcceptsWhatIsRightAndSeesWhatIsLeftOut) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const std::vector<Words> losses = {{"model.final_logit_softcapping=1"},
                                       {"training.label_smoothing=0.2"},
                                       {"training.z_loss=0.1"},
                                       kLosses.back()};
    for (const Words& loss : sweep.of(losses, 2)) {
      const TinyRun run(deep(loss, {fmt::format("training.dtype={}", dtype)}));
      const std::vector<TensorCut> layouts = {{2, {}}, {2, cut("algorithm_2", "1f1b", 2)}, grid(2, 2, 1)};
      for (const TensorCut& layout : sweep.of(layouts, 2)) {
        const Plan plan = run.plan(layout.ranks, layout.keys);
        const VerifyReport right = verify_layout(plan, run.data(), 2);
        EXPECT_TRUE(right.ok) << dtype << ", " << layout.name() << ", " << loss[0] << ": " << right.first_difference;
        const VerifyReport wrong = verify_with_fault(plan, run.data(), 1, Fault::plain_loss);
        EXPECT_FALSE(wrong.ok) << dtype << ", " << layout.name() << ", " << loss[0];
        EXPECT_GT(wrong.gradients.relative_error, kSeenInAGradient) << layout.name() << ", " << loss[0];
        EXPECT_TRUE(says(wrong.first_difference, {"step 1", "the gradient of"})) << dtype;
      }
    }
  }
}

// The cap belongs to the model and must not change. Smoothing and z-loss belong to the run and may change, as its
// learning rate may.
TEST(OutputLosses, GoOnWithTheCapThatTheyHad) {
  const Words all = kLosses.back();
  const TinyRun run(deep(all));
  const auto whole = train_ranks(run.plan(1), run.data(), {.steps = 4})[0];
  train_ranks(run.plan(2, cut("algorithm_2", "1f1b", 2)), run.data(), {.steps = 2, .save = true});
  const std::string checkpoint = run.folder() + "/out/checkpoints/step-000002";
  const auto resumed = [&](const Words& words) {
    return train_ranks(run.plan(1, words), run.data(), {.steps = 4, .resume_from = checkpoint})[0];
  };
  EXPECT_LT(worst_parameter(run.plan(1), resumed({}).last().weights, whole.last().weights).error, 1e-10);
  EXPECT_GT(relative_error(resumed({"training.label_smoothing=0.3"}).last().loss, whole.last().loss), kSeenInALoss);
  const std::string refusal = message_of<ConfigError>([&] { resumed({"model.final_logit_softcapping=0"}); });
  EXPECT_TRUE(says(refusal, {"model.final_logit_softcapping = 0", "which has 3"})) << refusal;
}

}  // namespace
}  // namespace orthant::output_loss_test
