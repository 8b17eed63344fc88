// The ranks of a tensor mesh update the same matrices with Muon, also if ZeRO divides them over data ranks and their
// shards have different sizes. Their chunks tile each bucket and divide no block of the gradient norm.
#include "plan/matrix_updates.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/exact_sum.h"
#include "plan/plan.h"

namespace orthant::matrix_updates_test {
namespace {

using Words = std::vector<std::string>;

// Sizes that no mesh below divides.
Plan plan_of(int ranks, Words words) {
  words.insert(words.end(), {"optimizer.name=muon", "model.hidden_size=101", "model.intermediate_size=211",
                             "model.num_attention_heads=12", "model.num_key_value_heads=6", "model.head_dim=10",
                             "model.num_hidden_layers=4", "model.attention_bias=true", "training.seq_len=48",
                             "training.local_batch_size=24", "training.global_batch_size=24",
                             "parallelism.bucket_mib=0.1"});
  return make_plan(parse_config("", "run.toml", words), {.ranks = ranks, .vocab_size = 257});
}

std::vector<std::pair<int, Words>> meshes() {
  const std::string p = "parallelism.", t = "parallelism.tensor_parallel_";
  const auto mesh = [&](const char* kind, const char* extents) {
    return Words{t + "kind=" + kind, t + "mesh=" + extents};
  };
  return {{4, {t + "degree=2"}},
          {6, mesh("2d", "[3,1,1]")},
          {12, mesh("2d", "[2,3,1]")},
          {12, mesh("2.5d", "[3,2,2]")},
          {8, {p + "pipeline_parallel_degree=2", t + "degree=2"}}};
}

std::vector<size_t> matrices_of(const std::vector<MatrixUpdate>& updates) {
  std::vector<size_t> all;
  for (const MatrixUpdate& update : updates) {
    for (const MatrixRound& round : update.rounds) all.insert(all.end(), round.begin(), round.end());
  }
  return all;
}

TEST(MatrixUpdates, AreTheSameOnAllRanksOfAMesh) {
  for (const auto& [ranks, keys] : meshes()) {
    for (const char* stage : {"parallelism.zero_stage=0", "parallelism.zero_stage=1", "parallelism.zero_stage=3"}) {
      Words words = keys;
      words.emplace_back(stage);
      const Plan plan = plan_of(ranks, words);
      std::set<size_t> updated;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto own = matrices_of(matrix_updates(plan, rank));
        updated.insert(own.begin(), own.end());
        for (const int other : plan.mesh.group(rank, plan.matrix_axes)) {
          EXPECT_EQ(matrices_of(matrix_updates(plan, other)), own) << plan.mesh_text() << ", " << stage << ", " << rank;
        }
      }
      EXPECT_EQ(updated.size(), 7u * 4) << plan.mesh_text();
    }
  }
}

// Control: if each rank divided its own shards, ranks of a mesh would own different matrices.
TEST(MatrixUpdatesControl, SizesOfShardsDiffer) {
  const Plan plan = plan_of(12, {"parallelism.tensor_parallel_kind=2d", "parallelism.tensor_parallel_mesh=[2,3,1]"});
  EXPECT_NE(plan.buckets_of(0).front().elements, plan.buckets_of(5).front().elements);
}

TEST(HeldBuckets, HaveChunksThatTileThemAndDivideNoBlock) {
  for (const auto& [ranks, keys] : meshes()) {
    Words words = keys;
    words.emplace_back("parallelism.zero_stage=1");
    const Plan plan = plan_of(ranks, words);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const GradientBucket& bucket : plan.buckets_of(rank)) {
        if (bucket.elements.size() == 0) continue;  // of another pipeline rank
        ASSERT_EQ(bucket.cuts.size(), static_cast<size_t>(plan.mesh.group_size(bucket.axes)) + 1);
        EXPECT_EQ(bucket.cuts.front(), bucket.elements.begin);
        EXPECT_EQ(bucket.cuts.back(), bucket.elements.end);
        EXPECT_TRUE(std::ranges::is_sorted(bucket.cuts));
      }
      const auto parts = plan.chunk_parts(rank);
      for (size_t i = 0; i < parts.size(); ++i) {
        const int64_t size = plan.parameters_of(rank)[i].shard_size();
        const bool is_matrix = plan.is_updated_as_matrix(i);
        const auto is_border = [&](int64_t at) {
          return at == 0 || at == size || (!is_matrix && at % kNormBlockElements == 0);
        };
        EXPECT_TRUE(is_border(parts[i].begin) && is_border(parts[i].end)) << plan.parameters[i].name << ", " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::matrix_updates_test
