// The effect of biases on a plan: the shards that ranks hold, the bytes of the gradient reductions, and memory. The
// plan without biases and closed formulas are the reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "plan/plan.h"

namespace orthant::bias_plan_test {
namespace {

using Words = std::vector<std::string>;

constexpr int64_t kHidden = 128, kIntermediate = 256, kQueries = 128, kKeys = 64, kLayers = 2;

Plan plan_of(int ranks, Words words, bool biases) {
  for (const char* key : {"attention_bias", "mlp_bias"}) words.push_back(fmt::format("model.{}={}", key, biases));
  words.insert(words.end(), {"model.hidden_size=128", "model.intermediate_size=256", "model.num_attention_heads=8",
                             "model.num_key_value_heads=4", "model.num_hidden_layers=2", "training.seq_len=64",
                             "training.local_batch_size=1", "training.global_batch_size=16"});
  return make_plan(parse_config("", "run.toml", words), {.ranks = ranks, .vocab_size = 512});
}

struct Case {
  int ranks, columns;
  bool stream_is_cut;       // sharded over columns along its width
  int sharers, of_stream;   // ranks that sum a bias of q, k, v, gate or up; of o or down
  Words words;
};
std::vector<Case> cases() {
  const std::string p = "parallelism.", t = "parallelism.tensor_parallel_";
  const auto mesh = [&](const char* kind, const char* extents) {
    return Words{t + "kind=" + kind, t + "mesh=" + extents};
  };
  return {{1, 1, false, 1, 1, {}},
          {4, 1, false, 4, 4, {}},
          {4, 1, false, 4, 4, {p + "context_parallel_ring=2"}},
          {2, 2, false, 1, 2, {t + "degree=2"}},
          {4, 2, false, 2, 4, {t + "degree=2"}},
          {4, 2, false, 2, 2, {t + "degree=2", t + "sequence=false"}},
          {4, 2, true, 2, 2, mesh("2d", "[2,2,1]")},
          {8, 2, true, 4, 4, mesh("2.5d", "[2,2,2]")},
          {8, 4, true, 2, 2, mesh("2.5d", "[1,4,2]")},
          {8, 1, false, 8, 8, mesh("2.5d", "[4,1,2]")},
          {8, 2, true, 4, 4, mesh("2d", "[2,2,1]")}};  // with two data ranks
}

int64_t bytes_of_reductions(const Plan& plan, int rank) {
  int64_t bytes = 0;
  for (const auto& entry : plan.communication) {
    if (entry.kind == CommunicationKind::gradients) bytes += plan.bytes_of(entry, rank);
  }
  return bytes;
}

TEST(BiasPlan, HoldsAndSendsWhatTheFormulaSays) {
  for (const Case& c : cases()) {
    const Plan with = plan_of(c.ranks, c.words, true), without = plan_of(c.ranks, c.words, false);
    const std::string mesh = with.mesh_text();
    const int64_t between = (kQueries + 2 * kKeys + 2 * kIntermediate) / c.columns;  // qkv, gate and up
    const int64_t of_stream = 2 * (c.stream_is_cut ? kHidden / c.columns : kHidden);  // output and down projection
    EXPECT_EQ(with.num_parameters() - without.num_parameters(),
              kLayers * (kQueries + 2 * kKeys + 2 * kIntermediate + 2 * kHidden));
    for (int rank = 0; rank < c.ranks; ++rank) {
      const MemoryBytes &now = with.memory_of(rank), &before = without.memory_of(rank);
      const int64_t held = kLayers * (between + of_stream) * 4;
      EXPECT_EQ(now.parameters - before.parameters, held) << mesh;
      EXPECT_EQ(now.gradients - before.gradients, held) << mesh;
      EXPECT_EQ(now.optimizer - before.optimizer, 2 * held) << mesh;
      EXPECT_EQ(now.activations, before.activations) << mesh;
      // The received summands of biases count where reductions in flight are the peak of the working memory.
      EXPECT_GE(now.working, before.working) << mesh;
      EXPECT_LT(now.working - before.working, held) << mesh;
      // An all-reduce over n ranks sends 2 (n-1)/n of the summed bytes.
      const auto sum = [](int64_t elements, int n) { return 2 * (n - 1) * elements * 4 / n; };
      EXPECT_EQ(bytes_of_reductions(with, rank) - bytes_of_reductions(without, rank),
                kLayers * (sum(between, c.sharers) + sum(of_stream, c.of_stream)))
          << mesh << ", rank " << rank;
    }
  }
}

TEST(BiasPlan, CutsABiasAsTheOutputOfItsLayer) {
  const auto layout = [](const Plan& plan, const std::string& name) {
    for (size_t p = 0; p < plan.parameters.size(); ++p) {
      if (plan.parameters[p].name == "model.layers.1." + name) return plan.layouts[p].split[0];
    }
    return Words{"no such parameter"};
  };
  const Words column{kColumn}, whole;
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c.ranks, c.words, true);
    for (const char* name : {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
                             "mlp.gate_proj.bias", "mlp.up_proj.bias"}) {
      EXPECT_EQ(layout(plan, name), c.columns > 1 ? column : whole) << name << ", " << plan.mesh_text();
    }
    for (const char* name : {"self_attn.o_proj.bias", "mlp.down_proj.bias", "post_attention_layernorm.weight"}) {
      EXPECT_EQ(layout(plan, name), c.stream_is_cut ? column : whole) << name << ", " << plan.mesh_text();
    }
  }
}

// As in Megatron's convention, only matrix products count.
TEST(BiasPlan, CountsNoFlopsForBiases) {
  const Architecture with = plan_of(1, {}, true).architecture, without = plan_of(1, {}, false).architecture;
  EXPECT_EQ(training_flops_per_token(with, 64), training_flops_per_token(without, 64));
}

}  // namespace
}  // namespace orthant::bias_plan_test
