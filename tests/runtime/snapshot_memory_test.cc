// Memory that saving takes: the weights of a sharded model pass through rank 0 one tensor at a time.
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

// The bound comes on top of the memory of training. A tensor sharded over two axes is assembled in two steps and takes
// 2.5 times its size: half of it, all of it in another order, and the full tensor. Rows of a sharded vocabulary are
// sent to rank 0 without a copy.
TEST(Snapshot, HoldsOneTensorMore) {
  const TinyRun run({"model.num_hidden_layers=8", "model.hidden_size=64", "model.intermediate_size=160",
                     "training.dtype=float32", "training.local_batch_size=1", "training.global_batch_size=8"});
  for (const TensorCut& c : {TensorCut{1, {}}, TensorCut{4, pipeline("1f1b", 4)}, TensorCut{4, pipeline("zb_v", 4)},
                               TensorCut{4, pipeline("v_half", 2, {"parallelism.data_parallel_degree=2"})},
                               TensorCut{4, cut("algorithm_2", "1f1b", 4, {"model.vocab_size=1003"})},
                               grid(2, 2, 1), grid(2, 1, 1, pipeline("1f1b", 2), 2)}) {
    const Plan plan = run.plan(c.ranks, c.keys);
    const auto largest = static_cast<double>(largest_tensor_bytes(plan));
    const double copies = plan.tensor.ranks() > 1 ? 2.5 : 1;
    ThreadMemory::install();
    run_ranks(c.ranks, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous);
      Session session(plan, run.data().train, comm);
      session.weights().initialize(1);
      const int64_t before = ThreadMemory::now();
      ThreadMemory::reset();
      save_snapshot(plan, run.data(), session, {.step = 1});
      const auto more = static_cast<double>(ThreadMemory::peak() - before);
      const bool sends_rows = rank > 0 && !plan.vocabulary.empty();
      EXPECT_LE(more, (sends_rows ? 0.5 : copies) * largest + 4096) << c.name() << ", rank " << rank;
      EXPECT_EQ(ThreadMemory::now(), before) << c.name() << ", rank " << rank;
    });
  }
}

}  // namespace
}  // namespace orthant::snapshot_memory_test
