// Memory that saving takes: a rank that writes collects the tensors of one round at a time.
#include "tests/support/pipelines.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/thread_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace orthant::snapshot_memory_test {
namespace {

int64_t largest_tensor_bytes(const Plan& plan) {
  int64_t largest = 0;
  for (const ParameterInfo& parameter : plan.parameters) largest = std::max(largest, parameter.size());
  return largest * master_bytes(plan.config);
}

// The bound comes on top of the memory of training. Shards that are not contiguous in the unsharded tensor arrive in a
// buffer of their own, so they are held twice. Only ranks that write hold anything.
TEST(Snapshot, HoldsTheTensorsOfARound) {
  const TinyRun run({"model.num_hidden_layers=8", "model.hidden_size=64", "model.intermediate_size=160",
                     "training.dtype=float32", "training.local_batch_size=1", "training.global_batch_size=8"});
  for (const TensorCut& c : {TensorCut{1, {}}, TensorCut{4, pipeline("1f1b", 4)}, TensorCut{4, pipeline("zb_v", 4)},
                               TensorCut{4, pipeline("v_half", 2, {"parallelism.data_parallel_degree=2"})},
                               TensorCut{4, cut("algorithm_2", "1f1b", 4, {"model.vocab_size=1003"})},
                               grid(2, 2, 1), grid(2, 1, 1, pipeline("1f1b", 2), 2)}) {
    const Plan plan = run.plan(c.ranks, c.keys);
    const int64_t largest = largest_tensor_bytes(plan);
    const SaveLimits limits{.writer_bytes = 4 * largest, .round_bytes = largest};
    const SavePlan files = plan_files(plan, limits);
    EXPECT_EQ(files.largest_round_bytes, largest) << c.name();
    EXPECT_GE(files.rounds, 4) << c.name();
    ThreadMemory::install();
    run_ranks(c.ranks, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous);
      Session session(plan, run.data().train, comm);
      session.weights().initialize(1);
      const int64_t before = ThreadMemory::now();
      ThreadMemory::reset();
      SnapshotSaver(plan, run.data(), session, limits).save({.step = 1});
      const int64_t more = ThreadMemory::peak() - before;
      const bool writes = std::ranges::any_of(files.files, [&](const SavedFile& file) { return file.writer == rank; });
      EXPECT_LE(more, (writes ? files.memory_bytes : 0) + 4096) << c.name() << ", rank " << rank;
      EXPECT_EQ(ThreadMemory::now(), before) << c.name() << ", rank " << rank;
    });
  }
}

}  // namespace
}  // namespace orthant::snapshot_memory_test
