// Lost work is detected where it is missed: a message that no stage has produced, a bucket that is reduced before its
// gradients are written, and a row without a W.
#include "base/errors.h"
#include "comm/thread_ranks.h"
#include "parallel/data/run.h"
#include "runtime/executor.h"
#include "tests/support/pipelines.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace orthant::lost_work_test {
namespace {

TEST(LostWork, AMessageThatNobodyMadeIsMissedUnlessTheMicrobatchIsEmpty) {
  for (const int64_t sequences : {1, 0}) {
    run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(Mesh({{"pipeline", 2}}), rank, rendezvous);
      Executor executor({.owners = {0, 1},
                         .stream_shape = [&](int) { return std::vector<int64_t>{sequences}; },
                         .stream = at::kDouble},
                        {}, comm);
      const std::vector<Action> row = {{ActionKind::SEND_F, 0, 0}};
      if (rank == 1) return;
      if (sequences == 0) return executor.run(row, {});
      EXPECT_THROW(executor.run(row, {}), LogicError);
    });
  }
}

TEST(LostWork, ABucketIsNotSummedBeforeItsGradientsAreWritten) {
  run_ranks(1, [](const Rendezvous& rendezvous, int rank) {
    Comm comm(Mesh({{"data", 1}}), rank, rendezvous);
    GradientReducer reducer(comm, at::zeros({4}), {{{0, 2}, {0}, {"data"}}, {{2, 4}, {1}, {"data"}}}, {1, 1});
    reducer.begin(2);
    for (const int weight : {1, 1, 0}) reducer.written(weight);
    EXPECT_NO_THROW(reducer.finish(1));
    EXPECT_THROW(reducer.finish(0), LogicError);
    reducer.begin(2);
    for (const int weight : {1, 0, 1, 0}) reducer.written(weight);
    EXPECT_NO_THROW(reducer.finish(-1));
  });
}

TEST(LostWork, ARowWithoutAWeightGradientIsNoticed) {
  const TinyRun run;
  const Plan plan = run.plan(2, pipeline("zb_h1", 2));
  const auto step = [&](bool complete) {
    run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous);
      SessionParts parts = session_parts(plan, comm);
      if (!complete) std::erase(parts.row, Action{ActionKind::W, rank, 0});
      Session(plan, run.data().train, comm, std::move(parts)).gradients(1, {});
    });
  };
  EXPECT_NO_THROW(step(true));
  EXPECT_THROW(step(false), LogicError);
}

}  // namespace
}  // namespace orthant::lost_work_test
