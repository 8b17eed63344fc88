// Training runs of models whose blocks have other operations than LLaMA's: every mesh has one rank's numbers within
// 1e-10, the planned bytes are sent, checkpoints resume on other meshes, and `verify` finds a wrong gradient.
#include <gtest/gtest.h>

#include "runtime/verify.h"
#include "tests/support/biases.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::block_variants_test {
namespace {

using Keys = std::vector<std::string>;

struct Variant {
  const char* name;
  Keys keys;
};
std::vector<Variant> variants() {
  return {{"head norms", {"model.qk_norm=true"}},
          {"capped scores", {"model.attn_logit_softcapping=0.5"}},
          {"learned positions", {"model.positions=learned", "model.head_dim=5"}},
          {"GPT-2", {"model.architecture=gpt2", "model.num_key_value_heads=4"}},  // with its own form of stored weights
          {"layer norm", {"model.norm=layer_norm"}},
          {"GELU", {"model.mlp=gelu_tanh", "model.mlp_bias=true", "model.intermediate_size=50"}}};
}

Keys with_batch(Keys keys) {
  keys.push_back("training.global_batch_size=8");
  return keys;
}

Course drawn(int64_t steps = 2) {
  return {.steps = steps, .prepare = [](Session& session, int) { draw_biases(session.weights()); }};
}

TensorCut stages(const std::string& schedule, int ranks, Keys more = {}, int others = 1) {
  more.insert(more.end(), {fmt::format("parallelism.pipeline_parallel_degree={}", ranks),
                           "parallelism.pipeline_parallel_schedule=" + schedule});
  return {ranks * others, more};
}

std::vector<TensorCut> cuts() {
  return {grid(2, 2, 2),
          one_dimension(2, {kNoSequence}),
          stages("zb_h1", 2, grid(2, 2, 1).keys, 4),
          one_dimension(2),
          {2, {kWithRing}},
          {2, {kWithUlysses}},
          {2, {kRecompute, "parallelism.bucket_mib=0.003"}},
          stages("1f1b", 2, {"parallelism.vocabulary_parallel=algorithm_2"}),
          stages("1f1b", 2, grid(1, 2, 1, {"parallelism.vocabulary_parallel=algorithm_1"}).keys, 2),
          stages("zb_h1", 2, one_dimension(2).keys, 2),
          grid(2, 2, 1, {kSumma}),
          grid(2, 2, 2, {kSumma, kRecompute}),
          grid(1, 2, 4),
          grid(4, 1, 1),
          grid(2, 2, 1, {kWithRing}, 2),
          one_dimension(2, {kWithUlysses, kNoSequence}, 2)};
}

// tests/e2e/layouts_test.cc compares one rank with plain autograd.
SWEEP_TEST(BlockVariants, HaveOneRanksNumbers) {
  for (const Variant& variant : variants()) {
    const TinyRun run(with_batch(variant.keys));
    const auto want = train_ranks(run.plan(1), run.data(), drawn())[0];
    for (const TensorCut& cut : sweep.of(cuts(), 5)) {
      const Plan plan = run.plan(cut.ranks, cut.keys);
      const auto ranks = train_ranks(plan, run.data(), drawn());
      const NamedError worst = worst_of_run(plan, ranks, want);
      EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << variant.name << ", " << cut.name();
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank))
            << variant.name << ", " << cut.name() << ", rank " << rank;
      }
    }
  }
}

TEST(BlockVariants, ContinueOnAnotherMesh) {
  for (const Variant& variant : variants()) {
    const TinyRun run(with_batch(variant.keys));
    const auto want = train_ranks(run.plan(1), run.data(), drawn(4))[0];
    const TensorCut from = grid(2, 2, 1), to = stages("1f1b", 2);
    Course first = drawn();
    first.save = true;
    train_ranks(run.plan(from.ranks, from.keys), run.data(), first);
    const std::string saved = run.folder() + "/out/checkpoints/step-000002";
    const Plan next = run.plan(to.ranks, to.keys);
    const auto have = train_ranks(next, run.data(), {.steps = 4, .resume_from = saved});
    for (size_t rank = 0; rank < have.size(); ++rank) {
      const NamedError weight =
          worst_parameter(next, have[rank].last().weights, want.last().weights, static_cast<int>(rank));
      EXPECT_LT(weight.error, 1e-10) << weight.name << ", " << variant.name;
    }
  }
}

SWEEP_TEST(BlockVariants, AreAcceptedByVerify) {
  for (const Variant& variant : variants()) {
    for (const char* dtype : {"bfloat16", "float32", "float64"}) {
      Keys keys = with_batch(variant.keys);
      keys.push_back(fmt::format("training.dtype={}", dtype));
      const TinyRun run(keys);
      const std::vector<TensorCut> meshes = {grid(2, 2, 2), one_dimension(2), {2, {kWithRing}}};
      for (const TensorCut& cut : sweep.of(meshes, 1)) {
        const VerifyReport report = verify_layout(run.plan(cut.ranks, cut.keys), run.data(), 2);
        EXPECT_TRUE(report.ok) << dtype << ", " << variant.name << ", " << cut.name() << ": "
                               << report.first_difference;
      }
    }
  }
}

// A factor of 1.001 in the gradients of one kind of parameter is found. The control with a factor of 1 shows that the
// factor is found, not the changed primitives.
TEST(BlockVariants, VerifySeesAWrongGradientOfEveryNewParameter) {
  const TinyRun run(with_batch({"model.qk_norm=true", "model.norm=layer_norm", "model.positions=learned"}));
  for (const TensorCut& cut : {grid(2, 2, 1), one_dimension(2)}) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const OracleTrace oracle = trace_oracle(plan, run.data(), 1);
    for (const char* parameter :
         {"q_norm.weight", "input_layernorm.weight", "model.norm.weight", "embed_positions.weight"}) {
      for (const double factor : {1.0, 1.001}) {
        const auto parts_of = [&](const Plan& own, Comm& comm) {
          SessionParts parts = session_parts(own, comm);
          parts.primitives = with_scaled_norm_gradients(std::move(parts.primitives), [&](const Weight& weight) {
            const auto [first, end] = weight.owner->flat().members[static_cast<size_t>(weight.index)];
            bool concerned = false;
            for (size_t i = first; i < end; ++i)
              concerned |= weight.owner->parameters()[i].name.ends_with(parameter);
            return concerned ? factor : 1.0;
          });
          return parts;
        };
        const VerifyReport report = verify_against(oracle, plan, run.data(), {}, parts_of);
        EXPECT_EQ(report.ok, factor == 1) << cut.name() << ", " << parameter << ": " << report.first_difference;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::block_variants_test
