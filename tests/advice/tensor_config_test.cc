// Tensor meshes that a run file may ask for, the refusals of others, and the settings that these refusals offer.
#include <gtest/gtest.h>

#include "advice/alternatives.h"
#include "base/errors.h"
#include "tests/support/says.h"
#include "tests/support/tensor_plans.h"
#include "tests/support/ways_out.h"

namespace orthant::tensor_config_test {
namespace {

TEST(TensorConfig, MakesTheMesh) {
  EXPECT_EQ(to_string(plan_of(8, {"tensor_parallel_degree=4"}).mesh),
            "[column 4, row 1, depth 1, ulysses 1, ring 1, data 2, pipeline 1]");
  const Plan plan =
      plan_of(8, {"tensor_parallel_kind=2.5d", "tensor_parallel_mesh=[1,2,2]", "context_parallel_ring=2"});
  EXPECT_EQ(plan.mesh_text(), "column 2, depth 2, ring 2");
  EXPECT_EQ(plan.tensor.stream, StreamSharding::width);
  EXPECT_EQ(plan_of(4, {"tensor_parallel_degree=-1", "data_parallel_degree=1"}).tensor.columns, 4);
  EXPECT_EQ(plan_of(4, {"tensor_parallel_degree=4", "tensor_parallel_sequence=false"}).tensor.stream,
            StreamSharding::none);
  EXPECT_EQ(plan_of(4, {"tensor_parallel_kind=2d", "tensor_parallel_mesh=[2,2,1]", "tensor_parallel_product=summa"})
                .tensor.form,
            ProductForm::summa);
}

// The data shard of a rank is depth * rows + row: depth is the outermost axis.
TEST(TensorConfig, OrdersRanksDepthOutermost) {
  const Plan plan = plan_of(8, {"tensor_parallel_kind=2.5d", "tensor_parallel_mesh=[2,2,2]"});
  const Mesh& mesh = plan.mesh;
  EXPECT_EQ(mesh.coord(5, kDepth), 1);
  EXPECT_EQ(mesh.coord(5, kRow), 0);
  EXPECT_EQ(mesh.coord(5, kColumn), 1);
  using Group = std::vector<int>;
  EXPECT_EQ(mesh.group(0, {"column"}), (Group{0, 1}));
  EXPECT_EQ(mesh.group(5, {"row"}), (Group{5, 7}));
  EXPECT_EQ(mesh.group(3, {"depth"}), (Group{3, 7}));
  EXPECT_EQ(mesh.group(2, {"row", "depth"}), (Group{0, 2, 4, 6}));
  EXPECT_EQ(mesh.group(7, {"row", "depth"}), (Group{1, 3, 5, 7}));
  for (const int rank : {0, 2, 4, 6}) EXPECT_EQ(plan.data_shard_index(rank), rank / 2);
}

// As an alternative the plan tries eight ranks, whose four data shards of two sequences are illegal. That must not
// refuse the run file.
TEST(TensorConfig, MayBeWhereItsAlternativesMayNot) {
  const std::vector<std::string> keys = {"tensor_parallel_kind=2d", "tensor_parallel_mesh=[2,2,1]"};
  const Plan plan = plan_of(4, keys, {"training.global_batch_size=2", "training.local_batch_size=1"});
  EXPECT_EQ(plan.data_shards.size(), 2u);
  for (const Alternative& other : alternatives_to(plan)) EXPECT_FALSE(other.change.starts_with("run.ranks=8"));
}

TEST(TensorConfig, WhatCannotBeIsRefusedWithWhatCan) {
  struct Bad {
    int ranks;
    std::vector<std::string> keys;
    std::vector<std::string> says;
  };
  const std::string two = "tensor_parallel_kind=2d", deep = "tensor_parallel_kind=2.5d";
  for (const Bad& bad : std::vector<Bad>{
           {6, {"tensor_parallel_degree=3"}, {"tensor_parallel_degree = 3", "num_attention_heads = 8", "set it to 2"}},
           {4, {"tensor_parallel_degree=8"}, {"tensor_parallel_degree = 8", "4 ranks", "set it to 4"}},
           {4,
            {two, "tensor_parallel_mesh=[2,3,1]"},
            {"tensor_parallel_mesh = [2, 3, 1]", "4 ranks", "set it to [2, 2, 1]"}},
           {4,
            {two, "tensor_parallel_mesh=[1,1,4]"},
            {"tensor_parallel_mesh = [1, 1, 4]", "depth 1", "set it to [1, 4, 1]"}},
           {4,
            {two, "tensor_parallel_mesh=[65536,65536,65536]", "context_parallel_ring=2"},
            {"depth 1", "set it to [1, 2, 1]"}},
           {4,
            {"tensor_parallel_kind=auto"},
            {"tensor_parallel_kind = \"auto\"", "tensor_parallel_degree = 1", "set it to 2, or", "\"1d\""}},
           {10, {"tensor_parallel_kind=auto"}, {"must be several ranks", "set it to 2, or"}},
           {6, {two}, {"tensor_parallel_kind = \"2d\"", "[1, 1, 1]", "set it to [1, 2, 1], or"}},
           {1,
            {deep},
            {"tensor_parallel_kind = \"2.5d\"", "must be several ranks",
             "; set parallelism.tensor_parallel_kind to \"1d\""}},
           {16,
            {deep, "tensor_parallel_mesh=[1,16,1]"},
            {"16 columns must divide", "num_attention_heads = 8", "[2, 8, 1], or"}},
           {16, {two, "tensor_parallel_mesh=[1,16,1]"}, {"16 columns", "set it to [2, 8, 1]"}},
           {6, {deep, "tensor_parallel_mesh=[2,2,1]"}, {"its 4 ranks must divide the 6 ranks", "or run.ranks to 4"}},
           {16,
            {deep, "tensor_parallel_mesh=[3,4,1]"},
            {"its 12 ranks must divide the 16 ranks", "set it to [4, 4, 1]"}},
           {16,
            {deep, "tensor_parallel_mesh=[1,1,16]"},
            {"data ranks = 16 must divide", "set it to [1, 2, 8]", "or training.global_batch_size to 16"}},
           {5,
            {deep, "tensor_parallel_mesh=[1,5,1]"},
            {"5 columns", "; set it to [1, 1, 5] and training.global_batch_size to 10"}},
           {3,
            {deep, "tensor_parallel_mesh=[1,1,3]"},
            {"data ranks = 3 must divide", "global_batch_size = 8", "training.global_batch_size to 9"}},
           {6,
            {deep, "tensor_parallel_mesh=[3,2,1]"},
            {"data ranks = 3 must divide", "global_batch_size = 8", "training.global_batch_size to 9"}},
           {4,
            {"tensor_parallel_mesh=[2,2,1]"},
            {"kind = \"1d\" (default)", "parallelism.tensor_parallel_kind to \"2d\""}},
           {4, {"tensor_parallel_mesh=[1,1,4]"}, {"or parallelism.tensor_parallel_kind to \"2.5d\""}},
           {8,
            {"tensor_parallel_kind=auto", "tensor_parallel_mesh=[2,2,2]"},
            {"; set parallelism.tensor_parallel_kind to \"2.5d\", or parallelism.tensor_parallel_mesh to [1, 1, 1] and "
             "parallelism.tensor_parallel_degree to 2"}},
           {8,
            {"tensor_parallel_kind=1d", "tensor_parallel_mesh=[2,2,2]", "tensor_parallel_product=summa"},
            {"; set parallelism.tensor_parallel_kind to \"2.5d\", or parallelism.tensor_parallel_mesh to [1, 1, 1] and "
             "parallelism.tensor_parallel_product to \"stationary\""}},
           {4, {"tensor_parallel_product=summa"}, {"tensor_parallel_kind", "\"stationary\""}},
           {4,
            {two, "tensor_parallel_mesh=[2,2,1]", "tensor_parallel_degree=4"},
            {"tensor_parallel_degree = 4", "has no effect with", "set it to 1"}},
           {4, {two, "tensor_parallel_mesh=[2,2,1]", "tensor_parallel_sequence=false"}, {"has no effect with"}},
           {4, {deep, "tensor_parallel_mesh=[1,1,4]", "tensor_parallel_product=summa"}, {"product", "\"stationary\""}},
           {16,
            {"tensor_parallel_degree=4", "context_parallel_ulysses=4"},
            {"over 4 columns must leave at least 4 heads", "set it to 2"}},
           {64, {deep, "tensor_parallel_mesh=[64,1,1]"}, {"64 rows", "hidden_size = 32", "must each be at most"}},
           {4, {deep, "tensor_parallel_mesh=[4611686018427387904,4,1]"}, {"4 ranks", "set it to ["}},
           {12,
            {"tensor_parallel_degree=4", "context_parallel_ring=3", "context_parallel_placement=contiguous"},
            {"tensor_parallel_degree = 4", "tokens that a rank holds of a sequence", "seq_len = 32", "to 36, or"}}}) {
    EXPECT_TRUE(says(message_of<ConfigError>([&] { plan_of(bad.ranks, bad.keys); }), bad.says)) << bad.keys.back();
  }
}

// Every refusal of a degree or a mesh that does not fit the ranks offers settings that work.
TEST(TensorConfig, WhatIsOfferedWorks) {
  using Words = std::vector<std::string>;
  const Words meshes = {"[3,1,1]", "[1,3,1]", "[5,1,1]", "[2,3,1]", "[6,1,1]", "[1,1,3]", "[3,4,1]", "[2,2,3]"};
  int refused = 0;
  const auto expect = [&](const std::string& kind, const std::string& asked, const Words& more) {
    const Words keys = {"tensor_parallel_kind=" + kind, asked};
    const std::string refusal = message_of<ConfigError>([&] { plan_of(8, keys, more); });
    if (refusal.empty()) return;
    ++refused;
    const std::vector<Settings> ways = ways_out(refusal);
    EXPECT_FALSE(ways.empty()) << refusal;
    for (const Settings& way : ways) {
      Words changed = more;
      changed.insert(changed.end(), way.begin(), way.end());
      const auto ranks = std::ranges::find_if(way, [](const std::string& w) { return w.starts_with("run.ranks="); });
      const int of_way = ranks == way.end() ? 8 : std::stoi(ranks->substr(10));
      EXPECT_EQ(message_of<ConfigError>([&] { plan_of(of_way, keys, changed); }), "") << refusal;
    }
  };
  for (const char* batch : {"1", "8"}) {
    for (const char* more : {"model.num_key_value_heads=2", "parallelism.context_parallel_ulysses=4",
                             "parallelism.context_parallel_ulysses=3"}) {
      Words words = {std::string("training.global_batch_size=") + batch, "training.local_batch_size=1", more};
      for (const char* degree : {"3", "5", "6", "16"}) {
        expect("1d", std::string("tensor_parallel_degree=") + degree, words);
        words.emplace_back("parallelism.tensor_parallel_sequence=false");
        expect("1d", std::string("tensor_parallel_degree=") + degree, words);
        words.pop_back();
      }
      for (const std::string& mesh : meshes) {
        expect("2d", "tensor_parallel_mesh=" + mesh, words);
        expect("2.5d", "tensor_parallel_mesh=" + mesh, words);
        words.emplace_back("parallelism.tensor_parallel_product=summa");
        expect("2.5d", "tensor_parallel_mesh=" + mesh, words);
        words.pop_back();
      }
    }
  }
  EXPECT_GT(refused, 150);
}

// Every plan keeps to the limit of memory, to the byte.
TEST(TensorConfig, EveryPlanKeepsToItsMemory) {
  using Words = std::vector<std::string>;
  const Words mesh = {"tensor_parallel_kind=2d", "tensor_parallel_mesh=[2,2,1]"};
  for (const Words& keys : {Words{}, Words{"tensor_parallel_degree=4"}, mesh}) {
    const int64_t bytes = plan_of(4, keys).largest_memory_bytes();
    const auto limited_to = [&](int64_t limit) {
      return plan_of(4, keys, {fmt::format("run.memory_gib_per_rank={:.17g}", static_cast<double>(limit) / (1 << 30))});
    };
    EXPECT_EQ(limited_to(bytes).largest_memory_bytes(), bytes);
    const std::string refusal = message_of<ConfigError>([&] { limited_to(bytes - 1); });
    EXPECT_TRUE(says(refusal, {"memory_gib_per_rank", "tensors of rank 0", "changes that fit: activation_checkpoint"}));
    EXPECT_TRUE(says(message_of<ConfigError>([&] { limited_to(1); }), {"use more ranks"}));
    const size_t at = refusal.find("set it to ");
    ASSERT_NE(at, std::string::npos) << refusal;
    EXPECT_GE(std::stod(refusal.substr(at + 10)) * (1 << 30), static_cast<double>(bytes)) << refusal;
  }
}

// An offered sequence length is legal: the columns can shard the tokens of each ring rank.
TEST(TensorConfig, OffersALengthThatWorks) {
  for (const int64_t seq_len : {17, 23, 25, 31, 61, 63}) {
    const std::vector<std::string> keys = {"tensor_parallel_degree=2", "context_parallel_ring=4"};
    const std::string refusal =
        message_of<ConfigError>([&] { plan_of(8, keys, {fmt::format("training.seq_len={}", seq_len)}); });
    const size_t at = refusal.find("training.seq_len to ");
    ASSERT_NE(at, std::string::npos) << refusal;
    const int64_t offered = std::stoll(refusal.substr(at + 20));
    EXPECT_LE(std::abs(offered - seq_len), 7) << refusal;
    EXPECT_EQ(plan_of(8, keys, {fmt::format("training.seq_len={}", offered)}).config.training.seq_len, offered);
  }
}

}  // namespace
}  // namespace orthant::tensor_config_test
