// Training runs of models with biases: every number equals one rank's within 1e-10, the planned bytes are sent, and
// checkpoints resume on other meshes. `verify` finds the planted mistakes in biases.
#include <gtest/gtest.h>

#include "checkpoint/hf_directory.h"
#include "runtime/verify.h"
#include "tests/support/biases.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::bias_test {
namespace {

using Words = std::vector<std::string>;

const std::string kAttention = "model.attention_bias=true", kMlp = "model.mlp_bias=true";

Words with_biases(Words more = {}) {
  more.insert(more.end(), {kAttention, kMlp, "training.global_batch_size=8"});
  return more;
}

Course drawn(int64_t steps = 2) {
  return {.steps = steps, .prepare = [](Session& session, int) { draw_biases(session.weights()); }};
}

TensorCut stages(const std::string& schedule, int ranks, Words more = {}, int others = 1) {
  more.insert(more.end(), {fmt::format("parallelism.pipeline_parallel_degree={}", ranks),
                           "parallelism.pipeline_parallel_schedule=" + schedule});
  return {ranks * others, more};
}

std::vector<TensorCut> cuts() {
  return {{2, {}},
          {2, {kWithRing}},
          {2, {kWithUlysses}},
          {2, {kRecompute, "parallelism.bucket_mib=0.003"}},
          stages("1f1b", 2),
          stages("zb_h1", 2, {kWithRing}, 2),
          stages("zb_h1", 2, one_dimension(2).keys, 2),
          stages("zb_h2", 2, grid(2, 2, 1).keys, 4),
          one_dimension(2),
          one_dimension(2, {kNoSequence}),
          one_dimension(2, {}, 2),
          grid(2, 2, 1),
          grid(2, 2, 1, {kSumma}),
          grid(2, 2, 2),
          grid(2, 2, 2, {kSumma, kRecompute}),
          grid(1, 2, 4),
          grid(1, 1, 8),
          grid(4, 1, 1),
          grid(4, 2, 1, {"parallelism.bucket_mib=0.003"}),
          grid(2, 2, 1, {kWithRing}, 2),
          grid(2, 1, 2, {kWithUlysses}, 2),
          one_dimension(2, {kWithUlysses, kNoSequence}, 2)};
}

// Every mesh equals one rank, which tests/e2e/layouts_test.cc compares with plain autograd. The biases are not zero.
SWEEP_TEST(BiasRuns, HaveOneRanksNumbers) {
  for (const Words& more : {Words{kAttention, kMlp}, {kAttention}, {kMlp, "model.tie_word_embeddings=true"},
                            {"model.qkv_bias=true"}}) {
    Words keys = more;
    keys.push_back("training.global_batch_size=8");
    const TinyRun run(keys);
    const auto want = train_ranks(run.plan(1), run.data(), drawn())[0];
    for (const TensorCut& cut : sweep.of(cuts(), 3)) {
      const Plan plan = run.plan(cut.ranks, cut.keys);
      const auto ranks = train_ranks(plan, run.data(), drawn());
      const NamedError worst = worst_of_run(plan, ranks, want);
      EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name();
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank)) << cut.name() << ", rank " << rank;
      }
    }
  }
}

// Biases add bytes to the gradient reductions only, and no messages.
SWEEP_TEST(BiasRuns, SendNoMessagesOfTheirOwn) {
  const TinyRun bare({"training.global_batch_size=8"}), biased(with_biases());
  for (const TensorCut& cut : sweep.of(std::vector<TensorCut>{one_dimension(2, {}, 2), grid(2, 2, 1),
                                                              grid(2, 2, 2, {kSumma}), TensorCut{2, {kWithRing}}},
                                       2)) {
    const Plan without = bare.plan(cut.ranks, cut.keys), with = biased.plan(cut.ranks, cut.keys);
    ASSERT_EQ(without.communication.size(), with.communication.size()) << cut.name();
    int64_t reductions = 0;
    for (size_t i = 0; i < with.communication.size(); ++i) {
      const CommunicationEntry &now = with.communication[i], &before = without.communication[i];
      // The entry of the gradient norm ends in its number of parameters, which is left out of the comparison.
      EXPECT_EQ(now.what.substr(0, now.what.rfind(", ")), before.what.substr(0, before.what.rfind(", "))) << cut.name();
      const bool sums = now.what.starts_with("gradient");
      for (int rank = 0; rank < cut.ranks; ++rank) {
        const int64_t sent = with.bytes_of(now, rank), sent_before = without.bytes_of(before, rank);
        EXPECT_EQ(with.calls_of(now, rank), without.calls_of(before, rank)) << cut.name() << ", " << now.what;
        if (sums) {
          reductions += sent != sent_before;
        } else {
          EXPECT_EQ(sent, sent_before) << cut.name() << ", " << now.what;
        }
      }
    }
    EXPECT_GT(reductions, 0) << cut.name();
  }
}

SWEEP_TEST(BiasRuns, OfLinformerHaveOneRanksNumbers) {
  const TinyRun run(with_biases({"model.objective=masked", "model.linformer_length=4"}));
  const auto want = train_ranks(run.plan(1), run.data(), drawn())[0];
  for (const TensorCut& cut :
       sweep.of(std::vector<TensorCut>{TensorCut{2,
                                                 {kWithRing, "parallelism.context_parallel_attention=linformer",
                                                  "parallelism.context_parallel_placement=contiguous"}},
                                       grid(2, 2, 1), one_dimension(2)},
                2)) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const NamedError worst = worst_of_run(plan, train_ranks(plan, run.data(), drawn()), want);
    EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name();
  }
}

// Each checkpoint resumes on another mesh, and its directory is a Hugging Face model.
TEST(BiasRuns, GoOnOnAnotherMesh) {
  const TinyRun run(with_biases());
  const auto want = train_ranks(run.plan(1), run.data(), drawn(4))[0];
  const TensorCut cuts_in_turn[] = {grid(2, 2, 2), one_dimension(2),        stages("1f1b", 2),
                                    {1, {}},       grid(2, 2, 1, {kSumma}), one_dimension(2, {kNoSequence})};
  for (size_t i = 0; i + 1 < std::size(cuts_in_turn); ++i) {
    const TensorCut &from = cuts_in_turn[i], &to = cuts_in_turn[i + 1];
    Course first = drawn();
    first.save = true;
    train_ranks(run.plan(from.ranks, from.keys), run.data(), first);
    const std::string saved = run.folder() + "/out/checkpoints/step-000002";
    EXPECT_TRUE(read_hf_config(saved).model.attention_bias && read_hf_config(saved).model.mlp_bias);
    const TensorSet tensors = open_hf_weights(saved);
    EXPECT_EQ(tensors.tensor("model.layers.1.self_attn.k_proj.bias").shape, std::vector<int64_t>{12});
    EXPECT_EQ(tensors.tensor("model.layers.1.mlp.down_proj.bias").shape, std::vector<int64_t>{24});
    const Plan next = run.plan(to.ranks, to.keys);
    const auto have = train_ranks(next, run.data(), {.steps = 4, .resume_from = saved});
    for (size_t rank = 0; rank < have.size(); ++rank) {
      const NamedError weight =
          worst_parameter(next, have[rank].last().weights, want.last().weights, static_cast<int>(rank));
      EXPECT_LT(weight.error, 1e-10) << weight.name << ", " << from.name() << " then " << to.name();
    }
  }
}

SWEEP_TEST(BiasVerify, AcceptsWhatIsRight) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(with_biases({fmt::format("training.dtype={}", dtype)}));
    for (const TensorCut& cut : sweep.of(std::vector<TensorCut>{one_dimension(2), grid(2, 2, 2),
                                                                grid(2, 2, 1, {kSumma}), TensorCut{2, {kWithRing}}},
                                         2)) {
      const VerifyReport report = verify_layout(run.plan(cut.ranks, cut.keys), run.data(), 3);
      EXPECT_TRUE(report.ok) << dtype << ", " << cut.name() << ": " << report.first_difference;
    }
  }
}

// Biases start at zero, so that an error in adding them shows only after they have moved. This learning rate moves them
// far.
SWEEP_TEST(BiasVerify, FindsABiasThatEveryColumnAdds) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(with_biases({fmt::format("training.dtype={}", dtype), "optimizer.lr=0.6"}));
    for (const TensorCut& cut : sweep.of(std::vector<TensorCut>{one_dimension(2), one_dimension(2, {kNoSequence}),
                                                                grid(2, 2, 1), grid(1, 2, 2), grid(2, 2, 1, {kSumma})},
                                         2)) {
      const VerifyReport report =
          verify_with_fault(run.plan(cut.ranks, cut.keys), run.data(), 2, Fault::bias_of_every_column);
      EXPECT_FALSE(report.ok) << dtype << ", " << cut.name();
      EXPECT_TRUE(says(report.first_difference, {"step 2"})) << dtype << ", " << cut.name();
      EXPECT_GT(report.gradients.relative_error, kSeenInAGradient) << dtype << ", " << cut.name();
    }
  }
}

SWEEP_TEST(BiasVerify, FindsABiasSummedTwice) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(with_biases({fmt::format("training.dtype={}", dtype)}));
    for (const TensorCut& cut :
         sweep.of(std::vector<TensorCut>{one_dimension(2), grid(2, 2, 1), grid(1, 2, 2), grid(2, 2, 2, {kSumma}),
                                         one_dimension(2, {kNoSequence}, 2)},
                  2)) {
      const VerifyReport report =
          verify_with_fault(run.plan(cut.ranks, cut.keys), run.data(), 1, Fault::bias_summed_twice);
      EXPECT_FALSE(report.ok) << dtype << ", " << cut.name();
      // At least two ranks sum the bias again, so that its gradient is off by its own size or more.
      EXPECT_GE(report.gradients.relative_error, 1 - report.gradients.bound) << dtype << ", " << cut.name();
      EXPECT_TRUE(says(report.first_difference, {"step 1, rank 0: the gradient of model.layers.0.", ".bias"}))
          << dtype << ", " << cut.name() << ": " << report.first_difference;
    }
  }
}

// Below float64, the errors of some biases are measured relative to the gradient of their matrix. Here every bias
// gradient is off by its own size. The error that `verify` reports is then its sensitivity to a mistake in this bias
// alone.
TEST(BiasVerify, SeesAMistakeInAnyBias) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(with_biases({fmt::format("training.dtype={}", dtype)}));
    const TensorCut cut = grid(2, 2, 1);
    const VerifyReport report =
        verify_with_fault(run.plan(cut.ranks, cut.keys), run.data(), 1, Fault::bias_summed_twice);
    NamedError least;  // the bias whose smallest detectable mistake is largest
    for (const auto& [name, error] : report.gradient_errors) {
      if (!name.ends_with(".bias")) continue;
      EXPECT_LE(error, 1 + report.gradients.bound) << name;
      if (report.gradients.bound / error > least.error) least = {report.gradients.bound / error, name};
    }
    EXPECT_GT(least.error, 0) << "no bias was compared";
    EXPECT_LT(least.error, kPlantedMistake) << dtype << ", " << least.name;
    RecordProperty(dtype, fmt::format("{:.2e}, {}", least.error, least.name));
  }
}

}  // namespace
}  // namespace orthant::bias_test
