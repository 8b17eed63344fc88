// Updates in backward: their bits, their clipping, and their stop after a gradient that is not finite.
#include <gtest/gtest.h>

#include "tests/support/sweep.h"
#include "tests/support/zero_runs.h"

namespace orthant::zero_test {
namespace {

// Updates in backward have the bits of updates after it, with all stages of ZeRO and one microbatch. After the row no
// gradient is left.
SWEEP_TEST(UpdateInBackward, HasTheBitsOfAnUpdateAfterIt) {
  const std::string in_backward = "optimizer.in_backward=true";
  std::vector<Layout> cases;
  for (const auto& [name, ranks, keys] : layouts()) {
    if (std::ranges::any_of(keys, [](const std::string& key) { return key.find("pipeline_") != key.npos; })) continue;
    cases.push_back({name, ranks, keys});
    for (const auto& [stage, settings] : kStages) cases.push_back({name + ", " + stage, ranks, with(keys, settings)});
  }
  const Words copies = {"parallelism.zero_stage=2", "parallelism.data_parallel_replicate_degree=2"};
  cases.push_back({"data 4 in 2 copies", 4, copies});
  cases.push_back({"Muon", 3, {"optimizer.name=muon"}});
  cases.push_back({"Muon, stage 1", 3, {"optimizer.name=muon", kStage1, kSmallBuckets}});
  cases.push_back({"SGD, recomputed blocks", 2, {"optimizer.name=sgd", kRecompute}});
  cases.push_back({"clipped by the previous norm, stage 1", 2, with(kClipped, {kStage1})});
  cases.push_back({"clipped by the previous norm, Muon", 1, with(kClipped, {"optimizer.name=muon"})});
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype), "training.max_norm=0", "training.local_batch_size=7"});
    for (const auto& [name, ranks, keys] : sweep.of(cases, 5)) {
      const std::string what = fmt::format("{}, {}", name, dtype);
      SCOPED_TRACE(what);
      const Plan plan = run.plan(ranks, with(keys, {in_backward}));
      const Trained want = trained(run.plan(ranks, keys), run, {.steps = 3});
      const Trained have = trained(plan, run, {.steps = 3});
      expect_same_bits(have, want, what);
      expect_planned_traffic(have, plan, what);
    }
  }
}

// Clipping by the previous norm limits the second step as that norm says, and not the first.
TEST(UpdateInBackward, IsClippedByThePreviousNorm) {
  const TinyRun run({"training.local_batch_size=7", "optimizer.name=sgd", "optimizer.momentum=0",
                     "optimizer.weight_decay=0"});
  const auto train = [&](const Words& keys) {
    return train_ranks(run.plan(1, with(keys, {"optimizer.in_backward=true"})), run.data(), {.steps = 2})[0].steps;
  };
  const auto clipped = train(kClipped), free = train({"training.max_norm=0"});
  EXPECT_GT(clipped[0].norm, 0.5);
  EXPECT_TRUE(clipped[0].weights.equal(free[0].weights));
  const at::Tensor by_clipped = clipped[1].weights - clipped[0].weights, by_free = free[1].weights - free[0].weights;
  EXPECT_NEAR((by_clipped.norm() / by_free.norm()).item<double>(), 0.5 / clipped[0].norm, 1e-6);
}

// A gradient that is not finite stops all later updates, so that the weights can be examined, and it is named.
TEST(UpdateInBackward, StopsAtAGradientThatIsNotFinite) {
  const TinyRun run({"training.local_batch_size=7", "training.max_norm=0", "optimizer.in_backward=true"});
  const Plan plan = run.plan(1);
  run_ranks(1, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(1);
    const std::string nan_parameter = "model.layers.1.mlp.down_proj.weight",
                      earlier = "model.layers.0.mlp.down_proj.weight";
    const auto index_of = [&](const std::string& name) {
      const auto& all = session.weights().parameters();
      return static_cast<size_t>(std::ranges::find(all, name, &ParameterInfo::name) - all.begin());
    };
    const Weight& nan_weight = session.weights()[nan_parameter];
    session.weights().on_gradient = [&, count = session.weights().on_gradient](const Weight& weight) {
      if (&weight == &nan_weight) weight.gradient.fill_(std::nan(""));
      count(weight);
    };
    const at::Tensor head = session.weights().value(index_of("lm_head.weight")).clone(),
                     below = session.weights().value(index_of(earlier)).clone();
    const StepResult result = session.gradients(1, {});
    EXPECT_TRUE(std::isnan(result.norm));
    EXPECT_FALSE(session.weights().value(index_of("lm_head.weight")).equal(head));  // updated before
    EXPECT_TRUE(session.weights().value(index_of(earlier)).equal(below));
    EXPECT_EQ(session.find_first_not_finite(1).what, "the gradient of " + nan_parameter);
    for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      EXPECT_FALSE(session.weights().segmented_gradients().is_allocated(bucket)) << bucket;
    }
  });
}

// Ranks that exchange the matrices of Muon all take part in the exchange, also after a gradient that is not finite on
// one of them. No rank applies an update from such a gradient.
TEST(UpdateInBackward, MuonOnAMeshStopsAtAGradientThatIsNotFinite) {
  const TinyRun run({"training.local_batch_size=7", "training.max_norm=0", "optimizer.in_backward=true",
                     "optimizer.name=muon"});
  const Plan plan = run.plan(2, one_dimension(2).keys);
  run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(1);
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    const Weight& nan_weight = session.weights()[name];
    session.weights().on_gradient = [&, count = session.weights().on_gradient](const Weight& weight) {
      if (&weight == &nan_weight && rank == 1) weight.gradient.fill_(std::nan(""));
      count(weight);
    };
    EXPECT_TRUE(std::isnan(session.gradients(1, {}).norm)) << rank;
    EXPECT_EQ(session.first_weight_not_finite(), "") << rank;
  });
}

}  // namespace
}  // namespace orthant::zero_test
