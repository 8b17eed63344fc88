// With updates in backward, the gradients of one unit (the embedding, a block, or the last norm with the head) exist at
// a time on one rank, and of at most two on several ranks: one in reduction, and one that backward writes.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/pipelines.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/sharded_runs.h"

namespace orthant::in_backward_memory_test {
namespace {

/// The number of units that have gradients in memory.
size_t units_with_gradients(Session& session) {
  Weights& weights = session.weights();
  SegmentedBuffer& gradients = weights.segmented_gradients();
  std::set<int> layers;
  for (size_t w = 0; w < weights.all().size(); ++w) {
    const auto [begin, size] = weights.flat().weights[w];
    if (gradients.is_allocated(gradients.segment_of(begin, size))) {
      layers.insert(weights.parameters()[weights.flat().members[w].first].layer);
    }
  }
  return layers.size();
}

/// The largest number of units with gradients, on any rank, at any write of a gradient and before any update in two
/// steps.
size_t most_units_with_gradients(const TinyRun& run, const Plan& plan) {
  std::vector<size_t> most(static_cast<size_t>(plan.mesh.size()));
  std::vector<size_t> calls(most.size());
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport});
    Session session(plan, run.data().train, comm);
    session.weights().initialize(1);
    const auto r = static_cast<size_t>(rank);
    const auto note = [&] { most[r] = std::max(most[r], units_with_gradients(session)), ++calls[r]; };
    session.weights().on_gradient = [&, inner = session.weights().on_gradient](const Weight& weight) {
      note();
      inner(weight);
    };
    session.before_update = [&](size_t) { note(); };
    for (const int64_t step : {1, 2}) session.update(step, session.gradients(step, {}));
    EXPECT_GE(calls[r], 2 * session.weights().parameters().size());
  });
  return std::ranges::max(most);
}

TEST(InBackwardMemory, HasTheGradientsOfOneUnitOrOfTwoOnSeveralRanks) {
  const Words base = {"training.dtype=float32", "training.local_batch_size=7", "training.max_norm=0",
                      "model.num_hidden_layers=4"};
  const TinyRun run(base);
  const std::string in_backward = "optimizer.in_backward=true", muon = "optimizer.name=muon";
  struct Case {
    int ranks;
    Words keys;
  };
  std::vector<Case> cases = {{1, {}}, {1, {muon}}, {1, {kRecompute}}, {3, {}}, {3, {muon}},
                             {3, {"parallelism.zero_stage=1"}}, {2, one_dimension(2, {muon}).keys}};
  for (const auto& [name, stage] : kStages2And3) cases.push_back({3, stage});
  cases.push_back({4, {"parallelism.zero_stage=2", kTwoCopies}});
  constexpr size_t kUnits = 6;  // the embedding, four blocks, the head
  for (const Case& each : cases) {
    const std::string what = fmt::format("{} ranks {}", each.ranks, fmt::join(each.keys, " "));
    const Plan plan = run.plan(each.ranks, with(each.keys, {in_backward}));
    const size_t most = most_units_with_gradients(run, plan);
    // A bucket that only one rank holds needs no reduction, so that its gradients are updated and freed at once.
    const bool is_reduced = plan.mesh.group_size(plan.gradient_axes) > 1;
    EXPECT_EQ(most, is_reduced ? 2 : 1) << what;
    // The control: without updates in backward all gradients exist together, unless ZeRO reduces them by unit.
    const Plan after = run.plan(each.ranks, each.keys);
    if (!after.shards_gradients()) {
      EXPECT_EQ(most_units_with_gradients(run, after), kUnits) << what;
    }
  }
}

}  // namespace
}  // namespace orthant::in_backward_memory_test
