// verify_layout() on tensor meshes accepts correct layouts. For each planted mistake it names the first wrong tensor,
// its layer and the rank.
#include <gtest/gtest.h>

#include "plan/rounding.h"
#include "runtime/verify.h"
#include "tests/support/says.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::tensor_verify_test {
namespace {

TEST(TensorVerify, AcceptsWhatIsRight) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run({"training.global_batch_size=8", fmt::format("training.dtype={}", dtype)});
    for (const TensorCut& cut : {one_dimension(2), grid(2, 2, 2), grid(2, 2, 1, {kSumma})}) {
      const VerifyReport report = verify_layout(run.plan(cut.ranks, cut.keys), run.data(), 2);
      EXPECT_TRUE(report.ok) << dtype << ", " << cut.name() << ": " << report.first_difference;
    }
  }
}

// Updates of Muon have the bits of one device on every tensor mesh, also if the shards are uneven: with the gradients
// of one device, the weights are equal.
TEST(TensorVerify, AcceptsMuon) {
  const std::vector<std::string> uneven = {"model.hidden_size=20", "model.intermediate_size=33", "model.head_dim=6"};
  const std::string two = "parallelism.data_parallel_degree=2", zero_1 = "parallelism.zero_stage=1";
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    TinyRun run({"training.global_batch_size=8", "optimizer.name=muon", uneven[0], uneven[1], uneven[2],
                 fmt::format("training.dtype={}", dtype)});
    for (const TensorCut& cut : {one_dimension(2, {two, zero_1}, 2), grid(2, 2, 1, {kSumma}), grid(2, 1, 2)}) {
      const VerifyReport report = verify_layout(run.plan(cut.ranks, cut.keys), run.data(), 2);
      EXPECT_TRUE(report.ok) << dtype << ", " << cut.name() << ": " << report.first_difference;
      EXPECT_EQ(report.weights.bound == 0, std::string(dtype) != "float64");
    }
  }
}

struct Planted {
  const char* name;
  Fault fault;
  std::vector<TensorCut> cuts;
};
void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

class TensorFaults : public ::testing::TestWithParam<Planted> {};
INSTANTIATE_TEST_SUITE_P(
    Planted, TensorFaults,
    ::testing::Values(
        Planted{"swapped_groups", Fault::swapped_groups, {grid(2, 2, 1), grid(2, 2, 2), grid(2, 2, 1, {kSumma})}},
        Planted{"dropped_depth", Fault::dropped_depth, {grid(2, 2, 2), grid(1, 2, 2), grid(1, 1, 2, {}, 2)}},
        Planted{"mean_over_rows", Fault::mean_over_rows, {grid(2, 2, 1), grid(4, 1, 2), grid(2, 2, 2, {kSumma})}},
        Planted{"stray_mean", Fault::stray_mean, {grid(2, 2, 1), grid(1, 2, 2), one_dimension(2), grid(2, 2, 2)}}),
    [](const auto& instance) { return std::string(instance.param.name); });

// The answer that verify must give, computed without it: the first gradient, by parameter and then by rank, that is
// further off than rounding explains.
std::string first_wrong_gradient(const Plan& plan, const std::vector<RankTrace>& have, const StepTrace& want,
                                 Fault fault) {
  const RoundingBounds bounds = rounding_bounds(plan);
  const auto whole = parameter_table(plan.architecture);
  const FlatLayout all = flat_layout(whole);
  for (size_t p = 0; p < whole.size(); ++p) {
    for (int rank = 0; rank < plan.mesh.size(); ++rank) {
      int of = rank;
      if (fault == Fault::swapped_groups) {
        of = plan.mesh.rank_at(rank, kRow, plan.mesh.coord(rank, kColumn));
        of = plan.mesh.rank_at(of, kColumn, plan.mesh.coord(rank, kRow));
      }
      const auto held = plan.parameters_of(of);
      const at::Tensor part = have[static_cast<size_t>(rank)].last().gradients.narrow(
          0, flat_layout(held).parameter_offsets[p], held[p].shard_size());
      const at::Tensor wanted =
          want.gradients.narrow(0, all.parameter_offsets[p], whole[p].size()).view(whole[p].shape);
      const at::Tensor right = shard_of(held[p], wanted).flatten();
      const double least = bounds.rest * want.norm / bounds.gradients;  // floor for a gradient that is nearly zero
      const auto size = [](const at::Tensor& t) { return t.to(at::kDouble).norm().item<double>(); };
      if (size(part - right) <= bounds.gradients * std::max(size(right), least)) continue;
      const bool in_a_layer = whole[p].shape.size() > 1 && whole[p].layer >= 0;
      return fmt::format("step 1, rank {}: the gradient of {}{} has a relative error", rank, whole[p].name,
                         in_a_layer ? fmt::format(", layer {}", whole[p].layer) : "");
    }
  }
  return "nothing";
}

TEST_P(TensorFaults, AreFoundInEveryDtypeAndNamed) {
  const auto& [name, fault, cuts] = GetParam();
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run({kBatch[0], "model.vocab_size=258", fmt::format("training.dtype={}", dtype)});
    const StepTrace want = train_ranks(run.plan(1), run.data(), {.steps = 1})[0].last();
    for (const TensorCut& cut : cuts) {
      const Plan plan = run.plan(cut.ranks, cut.keys);
      const VerifyReport report = verify_with_fault(plan, run.data(), 1, fault);
      EXPECT_FALSE(report.ok) << dtype << ", " << cut.name();
      EXPECT_GE(report.gradients.relative_error, kPlantedMistake - report.gradients.bound) << dtype << cut.name();
      const auto have = train_ranks(plan, run.data(), {.steps = 1, .fault = fault});
      const std::string wrong = first_wrong_gradient(plan, have, want, fault);
      EXPECT_NE(wrong, "nothing");
      EXPECT_TRUE(says(report.first_difference, {wrong})) << dtype << ", " << cut.name();
    }
  }
}

// Mistakes that affect only a middle layer, or only the last ranks.
TEST(TensorVerify, NamesALayerAndARankThatAreNotTheFirst) {
  const TinyRun tied({"training.global_batch_size=8", "model.tie_word_embeddings=true"});
  const Plan plan = tied.plan(8, grid(2, 2, 2, {"parallelism.bucket_mib=0.005"}).keys);
  const VerifyReport dropped = verify_with_fault(plan, tied.data(), 1, Fault::dropped_reduction);
  const StepTrace want = train_ranks(tied.plan(1), tied.data(), {.steps = 1})[0].last();
  const auto have = train_ranks(plan, tied.data(), {.steps = 1, .fault = Fault::dropped_reduction});
  const std::string wrong = first_wrong_gradient(plan, have, want, Fault::dropped_reduction);
  EXPECT_TRUE(says(wrong, {"model.layers.1."}));
  EXPECT_TRUE(says(dropped.first_difference, {wrong}));

  // All labels are on the first ranks of the depth axis, whose gradients are right without the sum.
  for (int seed = 1; seed < 50; ++seed) {
    const TinyRun one({"model.objective=masked", "model.masked_share=0.07", "training.global_batch_size=2",
                       fmt::format("training.seed={}", seed)});
    if (one.data().train.valid_labels(0, 1) == 0 || one.data().train.valid_labels(1, 1) > 0) continue;
    const VerifyReport depth = verify_with_fault(one.plan(4, grid(1, 2, 2).keys), one.data(), 1, Fault::dropped_depth);
    EXPECT_TRUE(says(depth.first_difference, {"step 1, rank 2: the gradient of model.embed_tokens.weight"}));
    return;
  }
  FAIL() << "the second sequence always has a label";
}

}  // namespace
}  // namespace orthant::tensor_verify_test
