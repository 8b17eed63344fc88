// Training runs with the masked objective: every number equals one rank's within 1e-10, however batch and sequences are
// sharded. The negative control of verify is a stray mean.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/text.h"
#include "runtime/sample.h"
#include "runtime/verify.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::masked_test {
namespace {

using Words = std::vector<std::string>;

const Words kRingOf2 = {kWithRing}, kRingSelfAttention = {kWithRing, kTwoRings};
const Words kContiguousRing = {kWithRing, "parallelism.context_parallel_placement=contiguous"};

std::vector<TensorCut> layouts() {
  return {{2, {}},
          {3, {"training.local_batch_size=1"}},
          {2, kRingOf2},
          {2, kRingSelfAttention},
          {4, {kWithUlysses, kWithRing}},
          {4, kRingSelfAttention}};
}

// Steps without a label have no gradient to compare.
void expect_one_ranks_numbers(const TinyRun& run, const TensorCut& layout, int64_t steps = 3) {
  const std::string name = layout.name();
  const Plan plan = run.plan(layout.ranks, layout.keys);
  const auto want = train_ranks(run.plan(1), run.data(), {.steps = steps})[0];
  const auto ranks = train_ranks(plan, run.data(), {.steps = steps});
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const RankTrace& have = ranks[static_cast<size_t>(rank)];
    for (size_t step = 0; step < want.steps.size(); ++step) {
      EXPECT_TRUE(std::isfinite(have.steps[step].loss)) << name;
      const StepTrace &h = have.steps[step], &w = want.steps[step];
      EXPECT_LE(std::abs(h.loss - w.loss), 1e-10 * w.loss) << name;
      EXPECT_LT(worst_parameter(plan, h.weights, w.weights, rank).error, 1e-10) << name;
      if (w.norm == 0) continue;
      EXPECT_LT(worst_parameter(plan, h.gradients, w.gradients, rank).error, 1e-10) << name;
    }
  }
}

SWEEP_TEST(MaskedRuns, HaveOneRanksNumbers) {
  for (const bool packed : {false, true}) {
    std::vector<std::string> keys = {"model.objective=masked"};
    if (packed) keys.insert(keys.end(), {"data.mask_documents=true", "data.long_documents=cut"});
    const TinyRun run(keys);
    for (const TensorCut& layout : sweep.of(layouts(), 3)) expect_one_ranks_numbers(run, layout);
  }
}

SWEEP_TEST(MaskedRuns, HaveThemOnTensorMeshes) {
  for (const bool packed : {false, true}) {
    Words keys = {"model.objective=masked", kBatch[0]};
    if (packed) keys.insert(keys.end(), {"data.mask_documents=true", "data.long_documents=cut"});
    const TinyRun run(keys);
    for (const TensorCut& cut : sweep.of(std::vector<TensorCut>{one_dimension(2), grid(2, 2, 2),
                                                                grid(2, 2, 2, {kSumma}), grid(2, 1, 2, {kWithRing}, 2)},
                                         2))
      expect_one_ranks_numbers(run, cut);
  }
}

SWEEP_TEST(MaskedRuns, HaveThemOnTheShortSampleToo) {
  // One batch is the full epoch, so that it includes the short last sample.
  const TinyRun run({"model.objective=masked", "training.global_batch_size=376", "training.local_batch_size=100"});
  ASSERT_EQ(run.data().train.num_samples(), 376);
  ASSERT_FALSE(run.data().train.batch(0, 376).lengths.empty());
  for (const TensorCut& layout : sweep.of(
           std::vector<TensorCut>{TensorCut{2, {}}, TensorCut{2, kRingOf2}, TensorCut{2, kRingSelfAttention}}, 2)) {
    expect_one_ranks_numbers(run, layout, 1);
  }
}

// Numbers of labels in the first and in the second half of the sample.
std::pair<int, int> halves(const Batch& batch) {
  std::pair<int, int> found;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    if (batch.labels[i] != kIgnoredLabel) ++(i < batch.labels.size() / 2 ? found.first : found.second);
  }
  return found;
}

TEST(MaskedRuns, MayHaveAllMaskedTokensOnOneRankOrNone) {
  const TinyRun run({"model.objective=masked", "model.masked_share=0.1", "training.global_batch_size=1",
                     "training.local_batch_size=1"});
  constexpr int64_t kSteps = 12;
  int first_only = 0, second_only = 0, none = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto [first, second] = halves(run.data().train.batch(step, 1));
    first_only += first > 0 && second == 0;
    second_only += first == 0 && second > 0;
    none += first == 0 && second == 0;
  }
  ASSERT_TRUE(first_only > 0 && second_only > 0 && none > 0) << first_only << ", " << second_only << ", " << none;
  expect_one_ranks_numbers(run, {2, kContiguousRing}, kSteps);
  expect_one_ranks_numbers(run, {2, {kContiguousRing[0], kContiguousRing[1], kRingSelfAttention[1]}}, kSteps);
  expect_one_ranks_numbers(run, {2, {}}, kSteps);  // one rank has no sequence
}

SWEEP_TEST(MaskedRuns, VerifyAcceptsWhatIsRightAndSeesAMean) {
  const TinyRun run({"model.objective=masked"});
  for (const TensorCut& layout :
       sweep.of(std::vector<TensorCut>{TensorCut{2, {}}, TensorCut{2, kRingSelfAttention}}, 2)) {
    const Plan plan = run.plan(layout.ranks, layout.keys);
    EXPECT_TRUE(verify_layout(plan, run.data(), 2).ok);
    EXPECT_FALSE(verify_with_fault(plan, run.data(), 2, Fault::stray_mean).ok);
  }
}

// The loss of the samples on one device with the initial weights.
double loss_of(const TinyRun& run, const Batch& batch) {
  const Plan plan = run.plan(1);
  Weights weights(plan.parameters, at::kDouble);
  weights.initialize(1);
  return Transformer(plan.architecture, weights, fused_primitives(), {}).forward(to_microbatch(batch)).item<double>();
}

TEST(MaskedRuns, SeeNothingOfTheFillBehindAShortSample) {
  const TinyRun run({"model.objective=masked", "training.seq_len=32"});
  const Loader& held_out = run.data().validation[0].samples;
  ASSERT_EQ(held_out.num_tokens() % 32, 25);
  Batch batch = held_out.batch(held_out.num_samples() - 2, 2), other = batch;
  ASSERT_EQ(batch.lengths, (std::vector<int64_t>{32, 25}));
  std::fill(other.tokens.end() - 7, other.tokens.end(), 65);
  EXPECT_EQ(loss_of(run, batch), loss_of(run, other));
  batch.lengths = other.lengths = {};  // control: without the lengths, the fill changes the loss
  EXPECT_NE(loss_of(run, batch), loss_of(run, other));
}

SWEEP_TEST(MaskedRuns, ValidateTheSameTokensEveryTimeOnAnyRanks) {
  const TinyRun run({"model.objective=masked"});
  const auto sums_over = [&](const TensorCut& layout, int64_t after_steps) {
    return validate_ranks(run.plan(layout.ranks, layout.keys), run.data(), after_steps)[0];
  };
  const Session::Validation one = sums_over({1, {}}, 0);
  EXPECT_EQ(one.labels,
            run.data().validation[0].samples.valid_labels(0, run.data().validation[0].samples.num_samples()));
  EXPECT_EQ(sums_over({1, {}}, 2).nats, one.nats);
  for (const TensorCut& layout :
       sweep.of(std::vector<TensorCut>{TensorCut{3, {}}, TensorCut{2, kRingSelfAttention}}, 2)) {
    const Session::Validation many = sums_over(layout, 0);
    EXPECT_EQ(many.labels, one.labels);
    EXPECT_LT(relative_error(many.nats, one.nats), 1e-12);
  }
  // In samples of the same number, training masks other positions than validation.
  const auto positions = [](const Loader& loader) {
    std::vector<bool> chosen;
    for (const int64_t label : loader.batch(0, 4).labels) chosen.push_back(label != kIgnoredLabel);
    return chosen;
  };
  EXPECT_NE(positions(run.data().train), positions(run.data().validation[0].samples));
}

TEST(MaskedRuns, CountTokensNotLabelsAndTheWholeSquareOfAttention) {
  const TinyRun run({"model.objective=masked"});
  const Plan plan = run.plan(1);
  run_ranks(1, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(1);
    const StepResult result = session.gradients(1, {});
    EXPECT_EQ(result.tokens, 7 * 16);
    EXPECT_EQ(result.valid_labels, run.data().train.valid_labels(0, 7));
    EXPECT_LT(result.valid_labels, 7 * 16 / 2);
  });
  Architecture causal = plan.architecture;
  causal.objective = "causal";
  EXPECT_EQ(training_flops_per_token(plan.architecture, 16) - training_flops_per_token(causal, 16), 6 * 2 * 16 * 24);
}

TEST(MaskedRuns, HaveATokenMoreThanTheTokenizer) {
  const TinyRun run({"model.objective=masked"});
  EXPECT_EQ(run.plan(1).architecture.vocab_size, 258);
  EXPECT_FALSE(run.plan(1).architecture.causal());
  EXPECT_EQ(run.plan(1, {"model.vocab_size=258"}).architecture.vocab_size, 258);
  EXPECT_TRUE(says(message_of<ConfigError>([&] { run.plan(1, {"model.vocab_size=257"}); }),
                   {"model.vocab_size = 257", "at least the 258 entries of the tokenizer with the mask token"}));
  const std::vector<int64_t> seen = run.data().train.batch(0, 50).tokens;
  EXPECT_EQ(*std::ranges::max_element(seen), mask_token(257));
}

TEST(MaskedRuns, GoOnAsTheyWereAndRefuseAnotherObjectiveOrShare) {
  const TinyRun run({"model.objective=masked"}), causal, share({"model.objective=masked", "model.masked_share=0.3"});
  const auto whole = train_ranks(run.plan(1), run.data(), {.steps = 4})[0];
  train_ranks(run.plan(2, kRingSelfAttention), run.data(), {.steps = 2, .save = true});
  const std::string checkpoint = run.folder() + "/out/checkpoints/step-000002";
  const auto resumed = train_ranks(run.plan(2), run.data(), {.steps = 4, .resume_from = checkpoint});
  EXPECT_LT(worst_parameter(run.plan(1), resumed[0].last().weights, whole.last().weights).error, 1e-10);

  const auto refusal = [&](const TinyRun& other, const std::string& from) {
    return message_of<ConfigError>(
        [&] { train_ranks(other.plan(1), other.data(), {.steps = 3, .resume_from = from}); });
  };
  EXPECT_TRUE(says(refusal(causal, checkpoint), {"model.objective = \"causal\" (default)", "which has \"masked\""}));
  EXPECT_TRUE(says(refusal(share, checkpoint), {"model.masked_share = 0.3", "where it was 0.15"}));
  train_ranks(causal.plan(1), causal.data(), {.steps = 2, .save = true});
  EXPECT_TRUE(says(refusal(run, causal.folder() + "/out/checkpoints/step-000002"),
                   {"model.objective = \"masked\"", "which has \"causal\""}));
}

SWEEP_TEST(MaskedRuns, ShowWhatTheModelFillsIn) {
  const TinyRun run({"model.objective=masked", "data.mask_documents=true", "data.long_documents=cut"});
  const auto shown_by = [&](const TensorCut& layout) {
    const Plan plan = run.plan(layout.ranks, layout.keys);
    std::vector<std::string> shown(static_cast<size_t>(layout.ranks));
    run_ranks(layout.ranks, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous);
      Session session(plan, run.data().train, comm);
      session.weights().initialize(1);
      shown[static_cast<size_t>(rank)] = filled_text(session, plan, run.data(), comm);
    });
    return shown;
  };
  const std::string shown = shown_by({1, {}})[0];
  EXPECT_TRUE(says(shown, {"masked: ", "[MASK]", "\nmodel:  ", "\ntext:   "}));
  for (const TensorCut& layout : sweep.of(layouts(), 3)) {
    for (const std::string& other : shown_by(layout)) EXPECT_EQ(other, shown);
  }
  // The displayed text is the sample's, on one line.
  const Batch batch = run.data().validation[0].samples.batch(0, 1);
  std::string text;
  for (size_t i = 0; i < 16; ++i) {
    const int64_t token = batch.labels[i] == kIgnoredLabel ? batch.tokens[i] : batch.labels[i];
    text += token == '\n' ? ' ' : static_cast<char>(token);
  }
  EXPECT_TRUE(says(shown, {fmt::format("\ntext:   {}", trim(text))}));
}

}  // namespace
}  // namespace orthant::masked_test
