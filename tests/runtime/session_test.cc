// One rank's part of a run: the samples that it reads, the signals that it exchanges and the bytes that it sends; and
// validation on any number of ranks.
#include "runtime/session.h"

#include "tests/support/says.h"
#include "tests/support/tiny_run.h"

#include <gtest/gtest.h>

#include <mutex>

namespace orthant::session_test {
namespace {

class RankCounts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(OneToEight, RankCounts, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(RankCounts, SendWhatThePlanSays) {
  const TinyRun run;
  for (const char* batch : {"5", "7", "32"}) {
    for (const char* bucket_mib : {"25", "0.02"}) {
      const Plan plan = run.plan(GetParam(), {fmt::format("training.global_batch_size={}", batch),
                                              fmt::format("parallelism.bucket_mib={}", bucket_mib)});
      EXPECT_EQ(plan.buckets.size() > 2, *bucket_mib == '0');
      const auto ranks = train_ranks(plan, run.data(), {.steps = 2});
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const Traffic planned = planned_traffic(plan, rank);
        for (const StepTrace& step : ranks[rank].steps) {
          EXPECT_EQ(step.traffic, planned)
              << "rank " << rank << ": " << step.traffic.bytes.sent << " for " << planned.bytes.sent;
        }
      }
    }
  }
}

TEST_P(RankCounts, TogetherReadTheStreamOfSamples) {
  // For any number of ranks, the data shards in order are the run's samples in order, step after step. A run that
  // resumes with another number of ranks therefore continues with the next sample.
  const TinyRun run;
  for (const int64_t batch : {5, 7, 32}) {
    const Plan plan = run.plan(GetParam(), {fmt::format("training.global_batch_size={}", batch)});
    for (const int64_t first : {int64_t{0}, 3 * batch}) {
      const Batch whole = run.data().train.batch(first, batch);
      std::vector<int64_t> tokens, ids;
      for (const DataShard& share : plan.data_shards) {
        for (const Range& part : share.microbatches) {
          const Batch read = run.data().train.batch(first + part.begin, part.size());
          tokens.insert(tokens.end(), read.tokens.begin(), read.tokens.end());
          ids.insert(ids.end(), read.sample_ids.begin(), read.sample_ids.end());
        }
      }
      EXPECT_EQ(tokens, whole.tokens);
      EXPECT_EQ(ids, whole.sample_ids);
    }
  }
}

TEST_P(RankCounts, ValidateAlike) {
  const TinyRun run;
  const Session::Validation one = validate_ranks(run.plan(1), run.data())[0];
  EXPECT_EQ(one.labels, run.data().validation[0].samples.num_tokens() - 1);
  EXPECT_GT(one.bytes, 0);
  for (const auto& sum : validate_ranks(run.plan(GetParam()), run.data())) {
    EXPECT_EQ(sum.labels, one.labels);
    EXPECT_EQ(sum.bytes, one.bytes);
    EXPECT_LT(relative_error(sum.nats, one.nats), 1e-12);
  }
}

// 12 ranks reduce the statistics along a tree.
class Signals : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ThreeAndTwelve, Signals, ::testing::Values(3, 12));

TEST_P(Signals, OfOneRankReachAll) {
  const TinyRun run;
  const Plan plan = run.plan(GetParam());
  std::vector<StepResult> results(static_cast<size_t>(GetParam()));
  run_ranks(GetParam(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    const StepResult quiet = session.gradients(1, {});
    EXPECT_FALSE(quiet.terminate || quiet.interrupt);
    results[static_cast<size_t>(rank)] =
        session.gradients(2, {.terminate = rank == 2, .peak_memory_bytes = (rank == 1 ? 5.0 : 3.0) * (1 << 20)});
  });
  for (const StepResult& result : results) {
    EXPECT_TRUE(result.terminate);
    EXPECT_FALSE(result.interrupt);
    EXPECT_EQ(result.peak_memory_bytes, 5.0 * (1 << 20));
    EXPECT_EQ(result.loss, results[0].loss);
    EXPECT_EQ(result.norm, results[0].norm);
  }
}

std::string diagnosis(const std::function<void(Weights&)>& spoil) {
  const TinyRun run({"training.dtype=float32"});
  const Plan plan = run.plan(1);
  std::string found;
  run_ranks(1, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    spoil(session.weights());
    session.gradients(1, {});
    found = session.find_first_not_finite(1).what;
  });
  return found;
}

size_t parameter(const Weights& weights, const std::string& name) {
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    if (weights.parameters()[p].name == name) return p;
  }
  ADD_FAILURE() << name;
  return 0;
}

TEST(Diagnosis, NamesWhatIsNotFinite) {
  EXPECT_EQ(diagnosis([](Weights&) {}), "");
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  EXPECT_EQ(diagnosis([&](Weights& w) { w.master(parameter(w, up))[2][3] = NAN; }), "the weight " + up);
  // The weights are finite, but their product overflows float32. The answer is forward's first tensor that is not
  // finite.
  const std::string found = diagnosis([&](Weights& w) {
    w.master(parameter(w, up)).fill_(1e30);
    w.master(parameter(w, "model.layers.1.mlp.gate_proj.weight")).fill_(1e30);
  });
  EXPECT_TRUE(says(found, {"swiglu"})) << found;
}

// Two ranks share each sequence, and one of them finds a bad weight. The other still completes its forward.
TEST(Diagnosis, OfOneRankLeavesNoneWaiting) {
  const TinyRun run;
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  for (const char* axis : {"ring", "ulysses"}) {
    const Plan plan = run.plan(2, {fmt::format("parallelism.context_parallel_{}=2", axis)});
    std::vector<std::string> found(2, "nothing, for the other is gone");
    run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous);
      Session session(plan, run.data().train, comm);
      session.weights().initialize(3);
      if (rank == 1) session.weights().master(parameter(session.weights(), up))[2][3] = NAN;
      const auto [what, first] = session.find_first_not_finite(1);
      found[static_cast<size_t>(rank)] = what;
      EXPECT_EQ(first, rank == 1) << axis;
    });
    EXPECT_EQ(found[0], "") << axis;
    EXPECT_EQ(found[1], "the weight " + up) << axis;
  }
}

}  // namespace
}  // namespace orthant::session_test
