// Training whose messages pass through copies in host memory, as those of ranks that share a GPU do, has the same bits
// as without the copies.
#include <gtest/gtest.h>

#include "tests/support/tiny_run.h"

namespace orthant::staged_test {
namespace {

struct Trace {
  std::vector<double> losses, norms;
  at::Tensor masters;
};

std::vector<Trace> train(const Plan& plan, const TrainingData& data, bool through_host_memory) {
  std::vector<Trace> ranks(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.through_host_memory = through_host_memory});
    Session session(plan, data.train, comm);
    session.weights().initialize(static_cast<uint64_t>(plan.config.training.seed));
    Trace& trace = ranks[static_cast<size_t>(rank)];
    for (int64_t step = 1; step <= 3; ++step) {
      const StepResult result = session.gradients(step, {});
      trace.losses.push_back(result.loss);
      trace.norms.push_back(result.norm);
      session.update(step, result);
    }
    trace.masters = session.weights().masters().clone();
  });
  return ranks;
}

TEST(Staged, TrainingHasTheBitsOfTheUsualTransport) {
  const std::string p = "parallelism.", pipeline = p + "pipeline_parallel_degree=";
  const TinyRun run;
  for (const auto& [ranks, keys] : std::vector<std::pair<int, std::vector<std::string>>>{
           {3, {p + "bucket_mib=0.01"}},
           {2, {p + "zero_stage=3", "training.dtype=bfloat16"}},
           {2, {p + "context_parallel_ring=2"}},
           {2, {p + "tensor_parallel_degree=2"}},
           {2, {pipeline + "2", p + "vocabulary_parallel=algorithm_2"}}}) {
    const Plan plan = run.plan(ranks, keys);
    const std::vector<Trace> usual = train(plan, run.data(), false), staged = train(plan, run.data(), true);
    for (size_t rank = 0; rank < usual.size(); ++rank) {
      SCOPED_TRACE(fmt::format("{}, rank {}", keys.front(), rank));
      EXPECT_EQ(staged[rank].losses, usual[rank].losses);
      EXPECT_EQ(staged[rank].norms, usual[rank].norms);
      EXPECT_TRUE(at::equal(staged[rank].masters, usual[rank].masters));
    }
    EXPECT_NE(usual[0].losses[0], usual[0].losses[2]);
  }
}

}  // namespace
}  // namespace orthant::staged_test
