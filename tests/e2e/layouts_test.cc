// Data-parallel runs equal one device that does not use the engine. Compared are loss, norm, every gradient and every
// updated weight, in float64 and after every step, for rank counts that do not divide the batch. The file also checks
// which runs are equal in every bit. The negative controls are planted faults and another learning rate.
#include "tests/support/plain_training.h"
#include "tests/support/tiny_run.h"

#include <gtest/gtest.h>

#include <map>

namespace orthant::layouts_test {
namespace {

constexpr double kBound = 1e-10;
constexpr int64_t kSteps = 4;

struct Feature {
  const char* name;
  std::vector<std::string> model;   // changes what is computed; the oracle has these settings too
  std::vector<std::string> layout;  // changes how it is computed; the oracle lacks these settings
};

std::vector<Feature> features() {
  return {{"plain", {}, {}},
          {"tied", {"model.tie_word_embeddings=true"}, {}},
          {"biases", {"model.attention_bias=true", "model.mlp_bias=true"}, {}},
          {"head_norms", {"model.qk_norm=true"}, {}},
          {"gelu", {"model.mlp=gelu"}, {}},
          {"layer_norm", {"model.norm=layer_norm"}, {}},
          {"learned_positions", {"model.positions=learned", "model.dropout=0.1"}, {}},
          {"sgd", {"optimizer.name=sgd", "optimizer.weight_decay_on=all"}, {}},
          {"dropout", {"model.dropout=0.2"}, {}},
          {"recompute", {}, {"activation_checkpoint.mode=full"}},
          {"buckets", {}, {"parallelism.bucket_mib=0.01"}},
          {"all", {"model.tie_word_embeddings=true", "model.dropout=0.2", "model.num_key_value_heads=1"},
           {"activation_checkpoint.mode=full", "parallelism.bucket_mib=0.01", "training.local_batch_size=3"}}};
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_close(const Plan& plan, const StepTrace& have, const StepTrace& want, const std::string& where) {
  EXPECT_LE(relative_error(have.loss, want.loss), kBound) << where;
  EXPECT_LE(relative_error(have.norm, want.norm), kBound) << where;
  const NamedError gradients = worst_parameter(plan, have.gradients, want.gradients);
  EXPECT_LE(gradients.error, kBound) << where << ": gradient of " << gradients.name;
  const NamedError weights = worst_parameter(plan, have.weights, want.weights);
  EXPECT_LE(weights.error, kBound) << where << ": " << weights.name;
}

using Case = std::tuple<size_t, int>;  // feature, global batch

class Layouts : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Features, Layouts,
                         ::testing::Combine(::testing::Range(size_t{0}, features().size()),
                                            ::testing::Values(5, 7, 32)),
                         [](const auto& instance) {
                           return fmt::format("{}_batch_{}", features()[std::get<0>(instance.param)].name,
                                              std::get<1>(instance.param));
                         });

TEST_P(Layouts, EqualOneDevice) {
  const Feature feature = features()[std::get<0>(GetParam())];
  const TinyRun run(joined(feature.model, {fmt::format("training.global_batch_size={}", std::get<1>(GetParam()))}));
  const auto oracle = train_plain(run.plan(1), run.data(), kSteps);
  for (const int count : {1, 2, 3, 4, 8}) {
    const Plan plan = run.plan(count, feature.layout);
    const auto ranks = train_ranks(plan, run.data(), {.steps = kSteps});
    for (size_t step = 0; step < static_cast<size_t>(kSteps); ++step) {
      const std::string where = fmt::format("{} ranks, step {}", count, step + 1);
      expect_close(plan, ranks[0].steps[step], oracle[step], where);
      for (size_t rank = 1; rank < ranks.size(); ++rank) {
        // A reduction leaves the same bits on every rank, so that the replicas' weights never drift apart.
        EXPECT_EQ(ranks[rank].steps[step].loss, ranks[0].steps[step].loss) << where;
        EXPECT_TRUE(ranks[rank].steps[step].gradients.equal(ranks[0].steps[step].gradients)) << where << ", " << rank;
        EXPECT_TRUE(ranks[rank].steps[step].weights.equal(ranks[0].steps[step].weights)) << where << ", " << rank;
      }
    }
  }
}

TEST(LayoutsControl, AMistakeOfOneRankIsFarBeyondTheBound) {
  const TinyRun run;
  const auto oracle = train_plain(run.plan(1), run.data(), 1);
  const Plan plan = run.plan(3);
  for (const Fault fault : {Fault::dropped_reduction, Fault::stray_mean, Fault::wrong_shard}) {
    const auto ranks = train_ranks(plan, run.data(), {.steps = 1, .fault = fault});
    EXPECT_GT(worst_parameter(plan, ranks[0].steps[0].gradients, oracle[0].gradients).error, kSeenInAGradient);
  }
  // Dropout drawn by local sample numbers in place of global ones.
  const TinyRun dropping({"model.dropout=0.2"});
  const auto dropped = train_plain(dropping.plan(1), dropping.data(), 1);
  const auto local = train_ranks(dropping.plan(3), dropping.data(), {.steps = 1, .fault = Fault::local_samples});
  EXPECT_GT(worst_parameter(plan, local[0].steps[0].gradients, dropped[0].gradients).error, kSeenInAGradient);
}

void expect_same_bits(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t rank = 0; rank < a.size(); ++rank) {
    for (size_t step = 0; step < a[rank].steps.size(); ++step) {
      EXPECT_EQ(a[rank].steps[step].loss, b[rank].steps[step].loss) << what << ", step " << step + 1;
      EXPECT_EQ(a[rank].steps[step].norm, b[rank].steps[step].norm) << what << ", step " << step + 1;
      EXPECT_TRUE(a[rank].steps[step].gradients.equal(b[rank].steps[step].gradients)) << what << ", step " << step + 1;
      EXPECT_TRUE(a[rank].steps[step].weights.equal(b[rank].steps[step].weights)) << what << ", step " << step + 1;
    }
    EXPECT_TRUE(same_state(a[rank].optimizer_state, b[rank].optimizer_state)) << what;
  }
}

class BitEquality : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, BitEquality, ::testing::Values("float64", "float32", "bfloat16"));

TEST_P(BitEquality, RunToRunAndOfRecomputation) {
  const TinyRun run({fmt::format("training.dtype={}", GetParam()), "model.dropout=0.1"});
  for (const int count : {1, 2, 3, 8}) {
    const auto first = train_ranks(run.plan(count), run.data());
    expect_same_bits(train_ranks(run.plan(count), run.data()), first, fmt::format("again, {} ranks", count));
    expect_same_bits(train_ranks(run.plan(count, {"activation_checkpoint.mode=full"}), run.data()), first,
                     fmt::format("recomputed, {} ranks", count));
  }
}

TEST_P(BitEquality, OfAnyBuckets) {
  // The ranks' terms are summed in the order of the rank coordinates, wherever bucket boundaries fall.
  const TinyRun run({fmt::format("training.dtype={}", GetParam())});
  for (const int count : {2, 3, 4}) {
    const auto one_bucket = train_ranks(run.plan(count), run.data());
    for (const char* size : {"0.01", "0.05"}) {
      const Plan plan = run.plan(count, {fmt::format("parallelism.bucket_mib={}", size)});
      EXPECT_GT(plan.buckets.size(), 1u);
      expect_same_bits(train_ranks(plan, run.data()), one_bucket, fmt::format("{} ranks, {} MiB", count, size));
    }
  }
}

TEST_P(BitEquality, IsNotTrivial) {
  const TinyRun run({fmt::format("training.dtype={}", GetParam())});
  const auto one = train_ranks(run.plan(2), run.data());
  const auto other_rate = train_ranks(run.plan(2, {"optimizer.lr=0.00301"}), run.data());
  EXPECT_FALSE(one[0].last().weights.equal(other_rate[0].last().weights));
}

}  // namespace
}  // namespace orthant::layouts_test
