// The meshes and variants that a search tries: keys of the user keep their values, and exclude no layout for which they
// have no effect.
#include "advice/layout_variants.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "advice/layout_search.h"
#include "advice/mesh_choices.h"
#include "tests/support/searched_layouts.h"

namespace orthant::layout_variants_test {
namespace {

using namespace searched_layouts;

// With tensor_parallel_sequence = false, the search tries all meshes without tensor ranks. Control: of those with
// tensor ranks, it leaves out the ones that shard tokens.
TEST(MeshChoices, KeepMeshesForWhichAKeyHasNoEffect) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const auto count = [&](const Words& words, bool of_tensor_ranks) {
    return std::ranges::count_if(mesh_choices(config_of(8, words), facts),
                                 [&](const MeshChoice& mesh) { return (mesh.tensor.ranks() > 1) == of_tensor_ranks; });
  };
  const Words off = {"parallelism.tensor_parallel_sequence=false"};
  EXPECT_GT(count({}, false), 0);
  EXPECT_EQ(count(off, false), count({}, false));
  EXPECT_GT(count(off, true), 0);
  EXPECT_LT(count(off, true), count({}, true));
}

// At most 64 ranks share a sequence, unless the user asks for more.
TEST(MeshChoices, TakeTheUsersNumberOfSequenceRanks) {
  const RunFacts facts = facts_on(h100_of(80), 256);
  const Words ring = {"parallelism.context_parallel_ring=128", "training.seq_len=1024"};
  EXPECT_FALSE(mesh_choices(config_of(256, ring), facts).empty());
  for (const MeshChoice& mesh : mesh_choices(config_of(256, {"training.seq_len=1024"}), facts)) {
    EXPECT_LE(mesh.ring * mesh.ulysses, 64);
  }
}

// Depth without sequence ranks is data parallelism: the two have equal plans, and only one is tried.
TEST(MeshChoices, LeaveOutDepthWhereItEqualsData) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const auto planned = [&](const Words& words) { return make_plan(config_of(8, words), facts); };
  const Words zero = {"parallelism.zero_stage=3", "parallelism.zero_reshard=microbatch"};
  Words data = zero, depth = zero;
  data.insert(data.end(), {"parallelism.tensor_parallel_kind=2d", "parallelism.tensor_parallel_mesh=2,2,1"});
  depth.insert(depth.end(), {"parallelism.tensor_parallel_kind=2.5d", "parallelism.tensor_parallel_mesh=2,2,2"});
  EXPECT_EQ(planned(data).step_time->seconds, planned(depth).step_time->seconds);
  EXPECT_EQ(planned(data).largest_memory_bytes(), planned(depth).largest_memory_bytes());
  for (const MeshChoice& mesh : mesh_choices(config_of(8), facts)) {
    EXPECT_TRUE(mesh.tensor.depth == 1 || mesh.ulysses * mesh.ring > 1);
  }
  EXPECT_FALSE(mesh_choices(config_of(8, depth), facts).empty());
}

TEST(LayoutVariants, KeepTheKeysOfTheUser) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const Words pipeline = {"parallelism.pipeline_parallel_degree=2", "run.device=cuda"};
  const auto variants_of = [&](const std::string& word, const auto& check) {
    Words words = pipeline;
    words.push_back(word);
    const Config config = config_of(8, words);
    const LayoutVariants variants(config, facts);
    std::vector<Config> all = variants.pipelines(config);
    for (Config& other : variants.partial_recomputations(config)) all.push_back(std::move(other));
    for (const auto& level : variants.recomputations()) {
      for (const ActivationCheckpointConfig& setting : level) {
        all.emplace_back(config).activation_checkpoint = setting;
      }
    }
    ASSERT_GT(all.size(), 3U) << word;
    for (const Config& other : all) EXPECT_TRUE(check(other)) << word;
  };
  variants_of("activation_checkpoint.offload=true", [](const Config& c) { return c.activation_checkpoint.offload; });
  variants_of("parallelism.pipeline_parallel_stages_per_rank=4",
              [](const Config& c) { return c.parallelism.pipeline_parallel_stages_per_rank == 4; });
  variants_of("activation_checkpoint.layers=3", [](const Config& c) { return c.activation_checkpoint.layers == 3; });
}

// A layout that recomputes is tried with recomputation in fewer blocks, unless the user has set it.
TEST(LayoutVariants, RecomputeInFewBlocks) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const Config base = config_of(8, {"model.num_hidden_layers=5"});
  const LayoutVariants variants(base, facts);
  EXPECT_TRUE(variants.sparse_recomputations(base).empty());
  Config recomputes = base;
  recomputes.activation_checkpoint = {.mode = "selective", .operations = {"swiglu"}};
  std::vector<int64_t> layers;
  for (const Config& other : variants.sparse_recomputations(recomputes)) {
    layers.push_back(other.activation_checkpoint.layers);
    EXPECT_NO_THROW(make_plan(other, facts));
  }
  EXPECT_EQ(layers, (std::vector<int64_t>{3, 3, 3, 4, 4, 4, 5, 5, 5}));
  const Config given = config_of(8, {"activation_checkpoint.mode=full"});
  EXPECT_TRUE(LayoutVariants(given, facts).sparse_recomputations(given).empty());
}

// A ring is tried with stripes, unless the user has set the placement or the attention has no blocks.
TEST(LayoutVariants, TryTheOtherPlacementOfTokens) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const auto tried = [&](const Words& words) {
    const Config config = config_of(8, words);
    std::vector<std::string> placements;
    for (const Config& other : LayoutVariants(config, facts).token_placements(config)) {
      EXPECT_NO_THROW(make_plan(other, facts));
      placements.push_back(other.parallelism.context_parallel_placement);
    }
    return placements;
  };
  const std::string ring = "parallelism.context_parallel_ring=4";
  EXPECT_EQ(tried({ring}), (std::vector<std::string>{"stripe"}));
  EXPECT_TRUE(tried({}).empty());
  EXPECT_TRUE(tried({ring, "parallelism.context_parallel_placement=zigzag"}).empty());
  EXPECT_TRUE(tried({ring, "parallelism.context_parallel_attention=ring_self_attention"}).empty());
}

// A schedule that the first part of a search does not try is tried with a sharded vocabulary, too, and layers are
// placed by their costs.
TEST(LayoutVariants, ChangeScheduleAndPlacementTogether) {
  const Words words = {"parallelism.pipeline_parallel_degree=4",
                       "training.seq_len=1024",
                       "training.global_batch_size=8",
                       "model.hidden_size=4096",
                       "model.intermediate_size=14336",
                       "model.num_hidden_layers=32",
                       "model.num_attention_heads=32"};
  bool both = false, by_cost = false;
  for (const FoundLayout& found : search_layouts(config_of(16, words), facts_on(h100_of(80), 16)).fitting) {
    const ParallelismConfig& p = found.config.parallelism;
    const bool is_varied = p.pipeline_parallel_schedule == "zb_h1" || p.pipeline_parallel_schedule.starts_with("v_");
    both = both || (is_varied && p.vocabulary_parallel.starts_with("algorithm"));
    by_cost = by_cost || p.pipeline_parallel_layers == std::vector<int64_t>{-1};
  }
  EXPECT_TRUE(both);
  EXPECT_TRUE(by_cost);
}

// Ranks along depth hold the same weights, so that ZeRO can shard the states over them. Rows and columns do not.
TEST(LayoutVariants, ShardStatesOverDepth) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const Config config = config_of(8);
  const LayoutVariants variants(config, facts);
  const auto stages = [&](int rows, int columns, int depth) {
    const MeshChoice mesh{.tensor = {.rows = rows, .columns = columns, .depth = depth}};
    std::vector<int64_t> found;
    for (const Config& state : variants.states(mesh, with_mesh(config, mesh), [](const Config&) { return false; })) {
      found.push_back(state.parallelism.zero_stage);
    }
    return found;
  };
  EXPECT_EQ(stages(2, 2, 2), (std::vector<int64_t>{0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(stages(2, 4, 1), (std::vector<int64_t>{0}));
}

}  // namespace
}  // namespace orthant::layout_variants_test
