// Rows of forwards alone: how far ranks run ahead of the following pipeline ranks, and the memory that they hold.
#include "tests/support/pipelines.h"
#include "tests/support/thread_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace orthant::forwards_test {
namespace {

// The second of two ranks is slow. The message is so large that its send completes only with its receive, not with a
// copy into a buffer.
TEST(Forwards, RanksRunAheadOnlySoFar) {
  constexpr int kMicrobatches = 16;
  static constexpr int64_t kNumbers = 1 << 20;
  std::atomic<int> done = 0;  // microbatches that the second rank has computed
  int ahead = 0;
  run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(Mesh({{"pipeline", 2}}), rank, rendezvous);
    const StageWork work = {.forward =
                                [&](const Action& action, const at::Tensor& x) {
                                  if (rank == 0) {
                                    ahead = std::max(ahead, action.microbatch - done);
                                    return at::full({kNumbers}, action.microbatch, at::kDouble);
                                  }
                                  EXPECT_EQ(x[kNumbers - 1].item<double>(), action.microbatch);
                                  std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                  ++done;
                                  return at::Tensor();
                                },
                            .backward = {}};
    std::vector<Action> row;
    for (int m = 0; m < kMicrobatches; ++m) {
      if (rank == 1) row.push_back({ActionKind::RECV_F, 1, m});
      row.push_back({ActionKind::F, rank, m});
      if (rank == 0) row.push_back({ActionKind::SEND_F, 0, m});
    }
    Executor({.owners = {0, 1}, .stream_shape = [](int) { return std::vector<int64_t>{kNumbers}; },
              .stream = at::kDouble},
             work, comm)
        .run(row, {});
  });
  EXPECT_EQ(done, kMicrobatches);
  // Two messages leave while the third output is computed. The receiver has posted one receive and computes another
  // microbatch.
  EXPECT_LE(ahead, 5);
  EXPECT_GE(ahead, 2);
}

// While ranks validate, with the last rank as the slowest, their tensors take no more than the plan of training,
// however many microbatches there are.
TEST(Forwards, ValidationHoldsNoMoreThanIsPlannedForTraining) {
  const TinyRun run({"model.num_hidden_layers=8", "model.hidden_size=96", "model.intermediate_size=128",
                     "model.vocab_size=512", "model.max_position_embeddings=64", "training.seq_len=64",
                     "training.dtype=float32", "training.global_batch_size=64", "training.local_batch_size=1",
                     "activation_checkpoint.mode=full"});
  for (const auto& [ranks, words] : std::vector<std::pair<int, Words>>{
           {2, pipeline("1f1b", 2, {"parallelism.pipeline_parallel_layers=1,7"})},
           {2, pipeline("zb_v", 2, {"parallelism.pipeline_parallel_layers=1,3,4,0"})},
           {3, pipeline("v_min", 3)},
           {3, pipeline("interleaved_1f1b", 3)}}) {
    const Plan plan = run.plan(ranks, words);
    ThreadMemory::install();
    run_ranks(ranks, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous);
      Session session(plan, run.data().train, comm);
      session.weights().initialize(1);
      ThreadMemory::reset();
      session.validate(run.data().train, 1, run.data().bytes_of_token);
      EXPECT_LE(ThreadMemory::peak(), plan.memory_of(rank).total()) << words[1] << ", rank " << rank;
    });
  }
}

}  // namespace
}  // namespace orthant::forwards_test
