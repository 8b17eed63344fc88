// A real step starts exactly the planned operations: on each group the same kinds, bytes and peers in the same order.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "plan/planned_operations.h"
#include "tests/support/sweep.h"
#include "tests/support/tiny_run.h"

namespace orthant::planned_operations_run_test {
namespace {

using Words = std::vector<std::string>;

// "send of 512 bytes to pipeline rank 1"; without the bytes if they differ between members.
std::string text_of(const std::string& kind, int64_t bytes, int peer) {
  return fmt::format("{}{}{}", kind, bytes < 0 ? "" : fmt::format(" of {} bytes", bytes),
                     peer < 0 ? "" : fmt::format(", pipeline rank {}", peer));
}

using Texts = std::map<std::string, std::vector<std::string>>;  // by group, in order

Texts planned_texts(const Plan& plan, int rank) {
  Texts texts;
  for (const PlannedOperation& operation : planned_operations(plan, rank_values(plan, rank)))
    texts[operation.group].push_back(text_of(operation.kind, operation.bytes, operation.peer));
  return texts;
}

// Attention exchanges keys and values over the ring, over which buckets may be reduced too.
bool is_within_blocks(const StartedOperation& operation) {
  return operation.kind == "exchange" && operation.group != kPipeline;
}

// The operations of the third step on the groups of the planned ones.
Texts started_texts(const Plan& plan, const std::vector<StartedOperation>& started, const Texts& planned) {
  Texts texts;
  for (const StartedOperation& operation : started) {
    const auto of_group = planned.find(operation.group);
    if (of_group == planned.end() || is_within_blocks(operation)) continue;
    auto& own = texts[operation.group];
    // The plan leaves the bytes of some sums open.
    const bool open =
        own.size() < of_group->second.size() && of_group->second[own.size()].find(" bytes") == std::string::npos;
    const int peer = operation.peer < 0 ? -1 : plan.pipeline_rank(operation.peer);
    own.push_back(text_of(operation.kind, open ? -1 : operation.bytes, peer));
  }
  return texts;
}

std::vector<std::vector<StartedOperation>> third_step(const Plan& plan, const TrainingData& data) {
  std::vector<std::vector<StartedOperation>> started(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.kept_operations = size_t{1} << 20});
    Session session(plan, data.train, comm);
    session.weights().initialize(1);
    const auto step = [&](int64_t number) { session.update(number, session.gradients(number, {})); };
    step(1), step(2);
    const size_t before = comm.last_operations().size();
    step(3);
    std::vector<StartedOperation> all = comm.last_operations();
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(before));
    started[static_cast<size_t>(rank)] = std::move(all);
  });
  return started;
}

SWEEP_TEST(PlannedOperationsRun, AreStartedInOrder) {
  const std::string p = "parallelism.", pipeline = p + "pipeline_parallel_",
                    zero = p + "zero_stage=", vocabulary = p + "vocabulary_parallel=", buckets = p + "bucket_mib=0.004",
                    four = "model.num_hidden_layers=4";
  struct Case {
    int ranks;
    Words keys;
  };
  const std::vector<Case> cases = {
      {3, {buckets}},
      {4, {zero + "1", buckets, "training.global_batch_size=3"}},  // one rank has no sequences
      {4, {zero + "2", p + "data_parallel_replicate_degree=2", buckets}},
      {2, {zero + "3", "optimizer.name=muon"}},
      {2, {pipeline + "degree=2", pipeline + "schedule=1f1b", "model.tie_word_embeddings=true"}},
      {4, {pipeline + "degree=2", pipeline + "schedule=zb_v", four, zero + "1", buckets}},
      {4, {pipeline + "degree=2", pipeline + "schedule=interleaved_1f1b", four, zero + "3"}},
      {4, {pipeline + "degree=4", pipeline + "schedule=zb_h2", four}},
      {2, {pipeline + "degree=2", vocabulary + "naive"}},
      {4, {pipeline + "degree=4", vocabulary + "algorithm_1", four}},
      {3, {pipeline + "degree=3", vocabulary + "algorithm_2", "model.num_hidden_layers=3"}},
      {4, {pipeline + "degree=2", p + "context_parallel_ring=2"}}};
  const TinyRun run;
  for (const Case& c : sweep.of(cases, 6)) {
    const std::string where = fmt::format("{} ranks, {}", c.ranks, fmt::join(c.keys, " "));
    SCOPED_TRACE(where);
    const Plan plan = run.plan(c.ranks, c.keys);
    check_operations(plan);
    const auto started = third_step(plan, run.data());
    for (int rank = 0; rank < c.ranks; ++rank) {
      const Texts planned = planned_texts(plan, rank);
      EXPECT_FALSE(planned.empty());
      EXPECT_EQ(started_texts(plan, started[static_cast<size_t>(rank)], planned), planned) << "rank " << rank;
    }
  }
}

// The control: a plan with two sends in another order than the run's is different.
TEST(PlannedOperationsRun, AnotherOrderIsDifferent) {
  const TinyRun run;
  Plan plan = run.plan(2, {"parallelism.pipeline_parallel_degree=2"});
  const auto started = third_step(plan, run.data());
  const Texts planned = planned_texts(plan, 0);
  std::vector<Action>& row = plan.schedule.rows[0];
  // The last microbatch has fewer sequences.
  const auto send = std::ranges::find(row, parse_action("0SEND_F2")),
             last = std::ranges::find(row, parse_action("0SEND_F3"));
  ASSERT_TRUE(send != row.end() && last != row.end());
  std::iter_swap(send, last);
  EXPECT_EQ(started_texts(plan, started[0], planned), planned);
  EXPECT_NE(planned_texts(plan, 0), planned);
}

}  // namespace
}  // namespace orthant::planned_operations_run_test
