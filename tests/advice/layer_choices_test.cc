// The table of ways to shard one layer. The bytes equal those of the published shapes, and those that the run itself
// plans.
#include "advice/layer_choices.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "advice/advised_plan.h"
#include "advice/attention_time.h"
#include "base/errors.h"

namespace orthant::layer_choices_test {
namespace {

Plan plan_of(int ranks, const std::vector<std::string>& overrides) {
  Config config = parse_config("", "run.toml", overrides);
  check_with_advice(config);
  return advised_plan(config, {.ranks = ranks, .vocab_size = 257});
}

// The shapes of LLaMA3-8B with one sequence of 65,536 tokens.
std::vector<std::string> large(const std::vector<std::string>& more) {
  std::vector<std::string> keys = {"model.hidden_size=4096",      "model.intermediate_size=14336",
                                   "model.num_hidden_layers=32",  "model.num_attention_heads=32",
                                   "model.num_key_value_heads=8", "model.max_position_embeddings=65536",
                                   "training.seq_len=65536",      "training.global_batch_size=1",
                                   "training.local_batch_size=1", "training.dtype=bfloat16"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

const LayerChoice& named(const std::vector<LayerChoice>& choices, const std::string& name) {
  for (const auto& choice : choices) {
    if (choice.name == name) return choice;
  }
  throw LogicError("no such layout: " + name);
}

TEST(LayerChoices, HaveTheBytesOfThePublishedShapes) {
  const auto choices = layer_choices(plan_of(8, large({"parallelism.context_parallel_ulysses=8"})));
  // The bytes are those of the all-to-alls, of keys and values (sent twice) and of their float32 gradients. The
  // gradients take one ring step fewer than published.
  EXPECT_EQ(named(choices, "ulysses 8").activation_bytes, 293'601'280);
  EXPECT_EQ(named(choices, "ulysses 4 x ring 2").activation_bytes, 2 * 125'829'120 + 2 * 33'554'432 + 134'217'728 / 2);
  EXPECT_EQ(named(choices, "ulysses 2 x ring 4").activation_bytes,
            2 * 83'886'080 + 2 * 100'663'296 + 268'435'456 / 4 * 3);
  EXPECT_EQ(named(choices, "ring 8").activation_bytes, 2 * 234'881'024 + 536'870'912 / 8 * 7);
  EXPECT_EQ(named(choices, "tensor 8").activation_bytes, 3'758'096'384);
  EXPECT_EQ(named(choices, "tensor 8 + sequence").activation_bytes, 4'697'620'480);
  // A layer has 13 d^2 weights and two norms of d. An all-reduce sends 7/8 of the 4-byte gradients twice.
  const int64_t weights = 13ll * 4096 * 4096 + 2 * 4096;
  EXPECT_EQ(named(choices, "ring 8").parameter_bytes, 2 * (weights * 4 / 8 * 7));
  EXPECT_EQ(named(choices, "data 8, ZeRO 3, step").state_bytes, weights * (2 + 4 + 12) / 8);
  const auto sgd = layer_choices(plan_of(8, large({"parallelism.context_parallel_ulysses=8", "optimizer.name=sgd"})));
  EXPECT_EQ(named(sgd, "data 8, ZeRO 3, step").state_bytes, weights * (2 + 4 + 8) / 8);
  EXPECT_EQ(sends_least(choices).name, "ulysses 8");
  EXPECT_EQ(named(choices, "data 8").remark, "needs 8 sequences a step");
  EXPECT_FALSE(named(choices, "data 8").is_comparable);
  // There is no way with more Ulysses ranks than heads.
  EXPECT_THROW(named(layer_choices(plan_of(64, large({"parallelism.context_parallel_ring=64"}))), "ulysses 64"),
               LogicError);
}

TEST(LayerChoices, AreTheRunsOwnBytesWhereTheyAreItsLayout) {
  const std::vector<std::vector<std::string>> cuts = {
      {"parallelism.context_parallel_ulysses=2"},
      {"parallelism.context_parallel_ring=2", "parallelism.context_parallel_placement=stripe"},
      {"parallelism.context_parallel_ulysses=2", "parallelism.context_parallel_ring=2"},
      {"parallelism.context_parallel_ring=4", "parallelism.context_parallel_window=2"},
      {"parallelism.context_parallel_ring=2", "parallelism.context_parallel_attention=ring_self_attention"}};
  for (size_t i = 0; i < 2 * cuts.size(); ++i) {
    auto keys = cuts[i / 2];
    const bool recompute = i % 2 == 1;
    keys.insert(keys.end(), {"training.global_batch_size=6", "training.local_batch_size=2",
                             recompute ? "activation_checkpoint.mode=full" : "activation_checkpoint.mode=none"});
    const Plan plan = plan_of(8, keys);
    std::vector<int64_t> sent(8);
    for (const auto& entry : plan.communication) {
      if (!entry.what.starts_with("attention")) continue;
      for (int rank = 0; rank < 8; ++rank) sent[static_cast<size_t>(rank)] += plan.bytes_of(entry, rank);
    }
    int chosen = 0;
    for (const auto& choice : layer_choices(plan)) {
      if (!choice.chosen) continue;
      ++chosen;
      EXPECT_EQ(choice.activation_bytes * plan.architecture.num_hidden_layers,
                *std::max_element(sent.begin(), sent.end()))
          << choice.name;
      // The plan's activations are those of all blocks, the head and the batch. The head keeps its input, the gradient
      // of its input and one statistic per token; the batch has three 8-byte numbers per token.
      const auto& a = plan.architecture;
      int64_t most = 0, tokens = 0;
      for (const auto& memory : plan.memory) most = std::max(most, memory.activations);
      for (int rank = 0; rank < 8; ++rank) tokens = std::max(tokens, 2 * plan.num_token_positions(rank));
      const int64_t batch = 3 * tokens * 8;
      EXPECT_EQ(choice.saved_bytes * a.num_hidden_layers + tokens * (2 * a.hidden_size + 1) * 4 + batch, most)
          << choice.name;
      if (recompute) {
        EXPECT_EQ(choice.saved_bytes, tokens * a.hidden_size * 4) << choice.name;
      }
    }
    EXPECT_EQ(chosen, 1) << explain_layer_choices(plan);
  }
}

// Ways that other tables plan are listed with the key that plans them, and with the bytes that such a plan sends.
TEST(LayerChoices, OtherPlansAreNamedAndSendWhatTheySay) {
  const std::vector<std::string> keys = {"model.num_hidden_layers=4", "training.global_batch_size=16",
                                         "training.local_batch_size=2"};
  const auto choices = layer_choices(plan_of(4, keys));
  const std::string degree = "parallelism.tensor_parallel_degree=4", stages = "parallelism.pipeline_parallel_degree=4";
  struct Other {
    std::string row, says;
    std::vector<std::string> keys;
    const char* what;
  };
  for (const Other& other :
       {Other{"tensor 4",
              "parallelism.tensor_parallel_degree = 4 plans it, with tensor_parallel_sequence = false",
              {degree, "parallelism.tensor_parallel_sequence=false"},
              "activations, blocks"},
        Other{
            "tensor 4 + sequence", "parallelism.tensor_parallel_degree = 4 plans it", {degree}, "activations, blocks"},
        Other{"pipeline 4", "parallelism.pipeline_parallel_degree = 4 plans it", {stages}, "stages"}}) {
    std::vector<std::string> words = keys;
    words.insert(words.end(), other.keys.begin(), other.keys.end());
    const Plan plan = plan_of(4, words);
    int64_t sent = 0;
    for (const auto& entry : plan.communication) {
      if (entry.what.find(other.what) != std::string::npos) sent += plan.bytes_of(entry, 1);
    }
    EXPECT_EQ(named(choices, other.row).remark, other.says);
    EXPECT_FALSE(named(choices, other.row).is_comparable);
    EXPECT_EQ(named(choices, other.row).activation_bytes, sent / 4) << other.row;
    // The plan also counts the activations of the head and the batch, hence the wide bound.
    const int64_t kept = plan.memory_of(0).activations;
    EXPECT_NEAR(static_cast<double>(named(choices, other.row).saved_bytes) * 4 / static_cast<double>(kept), 1, 0.3);
  }
  const auto few = layer_choices(plan_of(4, {"model.num_hidden_layers=2", "model.num_key_value_heads=2"}));
  EXPECT_TRUE(named(few, "pipeline 4").remark.starts_with("refused: parallelism.pipeline_parallel_degree = 4"));
  EXPECT_TRUE(named(few, "tensor 4").remark.starts_with("refused: parallelism.tensor_parallel_degree = 4"));
}

// If the ranks do not divide the weights, the bytes are exactly those of the busiest rank, as for the run's own
// buckets.
TEST(LayerChoices, GradientsAreReducedToTheElement) {
  const Plan plan = plan_of(5, {"training.dtype=bfloat16"});
  const auto choices = layer_choices(plan);
  int64_t weights = 0, most = 0;
  for (const auto& parameter : plan.parameters) weights += parameter.layer == 0 ? parameter.size() : 0;
  ASSERT_NE(weights % 5, 0);
  const Mesh mesh({{"data", 5}});
  for (int rank = 0; rank < 5; ++rank)
    most = std::max(most, reduction_bytes(mesh, {.elements = {0, weights}, .weights = {}, .axes = {"data"}}, 4, rank));
  EXPECT_EQ(named(choices, "data 5").parameter_bytes, most);
  // The elements of the other ranks' shards, as 4-byte gradients of each of two microbatches, and once as bfloat16
  // weights.
  EXPECT_EQ(named(choices, "data 5, ZeRO 2").parameter_bytes, (weights - weights / 5) * (2 * 4 + 2));
  // Stage 1 reduces once. It shards the masters and two moments, and keeps bfloat16 weights and float32 gradients.
  const LayerChoice& one = named(choices, "data 5, ZeRO 1");
  EXPECT_EQ(one.parameter_bytes, (weights - weights / 5) * (4 + 2));
  EXPECT_EQ(one.state_bytes, weights * 12 / 5 + weights * (2 + 4));
  const auto sharded = layer_choices(plan_of(5, {"training.dtype=bfloat16", "parallelism.zero_stage=1"}));
  EXPECT_EQ(named(sharded, "data 5, ZeRO 1").parameter_bytes, one.parameter_bytes);
  EXPECT_EQ(named(sharded, "data 5, ZeRO 1").state_bytes, one.state_bytes);
  // Stages 2 and 3 reduce each of two microbatches, and stage 3 gathers for its forward and its backward. In float32,
  // stage 2 keeps all weights, and a fifth of gradients and moments.
  const auto twice = layer_choices(plan_of(5, {"training.dtype=float32", "training.local_batch_size=1",
                                               "training.global_batch_size=10"}));
  EXPECT_EQ(named(twice, "data 5, ZeRO 2").parameter_bytes, (weights - weights / 5) * (2 * 4 + 4));
  EXPECT_EQ(named(twice, "data 5, ZeRO 3, microbatch").parameter_bytes, (weights - weights / 5) * 2 * (4 + 2 * 4));
  EXPECT_EQ(named(twice, "data 5, ZeRO 2").state_bytes, weights * 12 / 5 + weights * 4);
}

// A way to shard sequences is offered if each of its pieces has a token.
TEST(LayerChoices, EveryCutThatCanBeIsOffered) {
  const auto with = [](int64_t tokens, const std::string& placement) {
    return layer_choices(
        plan_of(8, {"parallelism.context_parallel_ring=8", "training.seq_len=" + std::to_string(tokens),
                    "parallelism.context_parallel_placement=" + placement}));
  };
  const auto offers = [](const std::vector<LayerChoice>& choices, const std::string& name) {
    return std::ranges::any_of(choices, [&](const LayerChoice& choice) { return choice.name == name; });
  };
  for (const char* placement : {"contiguous", "stripe"}) EXPECT_TRUE(offers(with(8, placement), "ring 8")) << placement;
  EXPECT_TRUE(offers(with(16, "zigzag"), "ulysses 2 x ring 4"));
  EXPECT_FALSE(offers(layer_choices(plan_of(8, {"training.seq_len=15"})), "ring 8"));
  EXPECT_TRUE(offers(layer_choices(plan_of(8, {"training.seq_len=16"})), "ring 8"));
  // Eight heads suffice for eight ranks, but four tokens do not.
  const std::vector<std::string> heads = {"model.hidden_size=64", "model.num_attention_heads=8",
                                          "model.num_key_value_heads=8"};
  const auto ulysses = [&](const std::string& tokens) {
    return offers(layer_choices(plan_of(8, {heads[0], heads[1], heads[2], "training.seq_len=" + tokens})), "ulysses 8");
  };
  EXPECT_TRUE(ulysses("8"));
  EXPECT_FALSE(ulysses("4"));
}

TEST(LayerChoices, DataParallelismSendsLeastWhileThereAreSequencesEnough) {
  const auto choices = layer_choices(plan_of(4, {"training.global_batch_size=4", "training.local_batch_size=1"}));
  EXPECT_EQ(sends_least(choices).name, "data 4");
  EXPECT_TRUE(sends_least(choices).chosen);
  EXPECT_EQ(holds_least(choices).name, "data 4, ZeRO 3, step");
  EXPECT_TRUE(layer_choices(plan_of(1, {})).empty());
}

Links links(int ranks_per_host, double inner_bytes_per_s, double outer_bytes_per_s, double flops_per_s = 0) {
  return {ranks_per_host, inner_bytes_per_s, outer_bytes_per_s, flops_per_s};
}

// Two hosts with two ranks each. For this layer, ulysses 4 sends the fewest bytes.
TEST(LayerChoices, TheFastestDependsOnTheLinks) {
  const std::vector<std::string> keys = {"model.hidden_size=512",       "model.num_attention_heads=8",
                                         "model.num_key_value_heads=8", "model.max_position_embeddings=4096",
                                         "training.seq_len=4096",       "training.global_batch_size=1",
                                         "training.local_batch_size=1", "parallelism.context_parallel_ulysses=4"};
  const auto fastest_with = [&](const Links& known) {
    Plan plan = plan_of(4, keys);
    plan.facts.links = known;
    const auto choices = layer_choices(plan);
    EXPECT_EQ(sends_least(choices).name, "ulysses 4");
    return fastest(choices).name;
  };
  // With one host and no computation to hide messages, the bytes decide.
  EXPECT_EQ(fastest_with(links(0, 1e9, 1e9)), "ulysses 4");
  // With a slow link between hosts, the bytes that cross it decide.
  EXPECT_EQ(fastest_with(links(2, 1e11, 1e7)), "ulysses 4");
  // Slow computation hides a ring but no all-to-all. If it is so slow that nothing else counts, all times are within
  // 5 % of each other, and the fewest bytes decide.
  EXPECT_EQ(fastest_with(links(2, 1e9, 1e9, 1e11)), "ring 4");
  EXPECT_EQ(fastest_with(links(2, 1e9, 1e9, 1e8)), "ulysses 4");
}

TEST(LayerChoices, TimesAreThoseOfTheBusiestLink) {
  Plan plan = plan_of(4, {"model.max_position_embeddings=4096", "training.seq_len=4096", "training.global_batch_size=1",
                          "training.local_batch_size=1", "parallelism.context_parallel_ulysses=2",
                          "parallelism.context_parallel_ring=2"});
  const auto choices = layer_choices(plan);
  const LayerChoice& choice = named(choices, "ulysses 2 x ring 2");
  const auto u = static_cast<double>(choice.ulysses_bytes), r = static_cast<double>(choice.ring_bytes);
  // The all-to-all stays inside the host; both ranks of a host send their ring blocks over its one outer link.
  EXPECT_DOUBLE_EQ(attention_seconds(plan, choice, links(2, 100, 10)), u / 100 + 2 * r / 10);
  EXPECT_DOUBLE_EQ(attention_seconds(plan, choice, links(1, 100, 10)), u / 10 + r / 10);
  EXPECT_DOUBLE_EQ(attention_seconds(plan, choice, links(0, 100, 10)), u / 100 + r / 100);
  // Half of the causal scores of 4,096 queries, for half of the heads.
  const auto operations = static_cast<double>(12ll * (4096 * 4097 / 4) * plan.architecture.num_attention_heads / 2 *
                                              plan.architecture.head_dim);
  EXPECT_DOUBLE_EQ(attention_seconds(plan, choice, links(0, 1e12, 1e12, 1)), u / 1e12 + operations);
}

}  // namespace
}  // namespace orthant::layer_choices_test
