// Meshes whose outer axis is data: the numbers equal one rank's and every bit those of meshes whose outer axis is the
// pipeline, and the planned bytes are sent. Control: the shards of a rank differ between the two orders.
#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"

namespace orthant::outer_axis_test {
namespace {

const Words kDataIsOuter = {"parallelism.outer_axis=data"};

struct Case {
  int ranks;
  Words layout;
};

SWEEP_TEST(OuterAxis, ChangesNoBit) {
  const TinyRun run({"model.num_hidden_layers=4", "training.local_batch_size=1", "training.global_batch_size=8",
                     "model.tie_word_embeddings=true", "model.dropout=0.1"});
  const auto one = train_ranks(run.plan(1), run.data(), {.steps = 2});
  for (const Case& each : sweep.of(
           std::vector<Case>{
               {8, cut("algorithm_2", "zb_v", 2, {"parallelism.tensor_parallel_degree=2", "parallelism.zero_stage=1"})},
               {8, pipeline("1f1b", 2, {"parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2"})},
               {6, cut("interlaced", "1f1b", 3, {})},
               {8, pipeline("zb_h1", 2, {"parallelism.context_parallel_ring=2", "parallelism.zero_stage=2"})},
               {8, pipeline("1f1b", 2,
                            {"parallelism.tensor_parallel_kind=2d", "parallelism.tensor_parallel_mesh=2,1,1"})}},
           2)) {
    Words words = each.layout;
    const Plan pipeline_is_outer = run.plan(each.ranks, words);
    words.insert(words.end(), kDataIsOuter.begin(), kDataIsOuter.end());
    const Plan data_is_outer = run.plan(each.ranks, words);
    EXPECT_EQ(data_is_outer.mesh.coord(each.ranks - 1, kData), data_is_outer.mesh.axis_size(kData) - 1);
    const auto traces = train_ranks(data_is_outer, run.data(), {.steps = 2});
    const auto others = train_ranks(pipeline_is_outer, run.data(), {.steps = 2});
    const std::string what = join(words, " ");
    expect_equal(data_is_outer, traces, one[0], what);
    for (int rank = 0; rank < each.ranks; ++rank) {
      int other = 0;  // the rank with the same coordinates on the other mesh
      for (const Axis& axis : data_is_outer.mesh.axes) {
        other = pipeline_is_outer.mesh.rank_at(other, axis.name, data_is_outer.mesh.coord(rank, axis.name));
      }
      for (size_t step = 0; step < 2; ++step) {
        expect_same_bits(traces[static_cast<size_t>(rank)].steps[step], others[static_cast<size_t>(other)].steps[step],
                         what);
      }
    }
  }
}

TEST(OuterAxisControl, RanksHoldOtherShards) {
  const TinyRun run({"model.num_hidden_layers=4"});
  const Words words = pipeline("1f1b", 2);
  const Plan pipeline_is_outer = run.plan(4, words), data_is_outer = run.plan(4, pipeline("1f1b", 2, kDataIsOuter));
  for (const auto& [plan, data, stage] : {std::tuple{&pipeline_is_outer, 1, 0}, {&data_is_outer, 0, 1}}) {
    EXPECT_EQ(plan->mesh.coord(1, kData), data);
    EXPECT_EQ(plan->mesh.coord(1, kPipeline), stage);
  }
}

}  // namespace
}  // namespace orthant::outer_axis_test
