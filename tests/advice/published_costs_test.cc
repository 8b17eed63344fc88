// The costs of sequence parallelism that the papers state for their models equal the costs that the plan computes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "advice/advised_plan.h"
#include "mesh/collective.h"

namespace orthant::published_costs_test {
namespace {

// The attention of BERT Base in float32, with 64 sequences of 512 tokens on four ranks.
constexpr int64_t kRanks = 4, kSequences = 64, kTokens = 512, kHeads = 12, kHeadDim = 64, kHidden = kHeads * kHeadDim;
constexpr int64_t kElement = 4;
constexpr SequenceAttention kBase{.sequences = kSequences,
                                  .seq_len = kTokens,
                                  .heads = kHeads,
                                  .key_heads = kHeads,
                                  .head_dim = kHeadDim,
                                  .element_bytes = kElement};

SequencePlan self_attention(bool as_published) {
  return {.ring = kRanks,
          .placement = SequencePlacement::contiguous,
          .method = SequenceMethod::ring_self_attention,
          .all_reduce = as_published};
}

Plan base_plan(const std::vector<std::string>& more) {
  std::vector<std::string> keys = {"model.objective=masked",       "model.hidden_size=768",
                                   "model.intermediate_size=3072", "model.num_hidden_layers=12",
                                   "model.num_attention_heads=12", "model.num_key_value_heads=12",
                                   "training.seq_len=512",         "training.global_batch_size=64",
                                   "training.local_batch_size=64", "training.dtype=float32"};
  keys.insert(keys.end(), more.begin(), more.end());
  Config config = parse_config("", "run.toml", keys);
  check_with_advice(config);
  return advised_plan(config, {.ranks = static_cast<int>(kRanks), .vocab_size = 257});
}

const std::vector<std::string> kSelfAttention = {"parallelism.context_parallel_ring=4",
                                                 "parallelism.context_parallel_placement=contiguous",
                                                 "parallelism.context_parallel_attention=ring_self_attention"};

int64_t elements_of(const std::vector<Messages>& messages) {
  int64_t bytes = 0;
  for (const auto& m : messages) bytes += m.bytes.sent;
  EXPECT_EQ(bytes % kElement, 0);
  return bytes / kElement;
}

// Ring Self-Attention, check 3 and section 2.4: 8 (N-1) X with an all-reduce, and 6 (N-1) X with a reduce-scatter in
// its place. The tests in tests/parallel/sequence/ compare the same formulas with the bytes that ranks count.
TEST(PublishedCosts, OfRingSelfAttentionForBertBase) {
  for (int r = 0; r < kRanks; ++r) {
    const auto paper = sequence_traffic(self_attention(true), kBase, 0, r);
    EXPECT_EQ(elements_of(paper.forward), 37'748'736);
    EXPECT_EQ(elements_of(paper.backward), 113'246'208);
    EXPECT_EQ(elements_of(paper.forward) + elements_of(paper.backward), 150'994'944);
    const auto cheaper = sequence_traffic(self_attention(false), kBase, 0, r);
    EXPECT_EQ(elements_of(cheaper.forward) + elements_of(cheaper.backward), 150'994'944 / 8 * 6);
  }
  // Four all-reduces of the residual stream over a tensor axis send the same, by the collective's own formula.
  const Mesh mesh({{"tensor", kRanks}});
  Layout partial = unsharded_layout(3);
  partial.partial = {"tensor"};
  const Collective sum{.kind = CollectiveKind::all_reduce, .axis = "tensor", .after = unsharded_layout(3)};
  const int64_t stream[] = {kSequences, kTokens, kHidden};
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(4 * bytes_sent(mesh, sum, partial, stream, kElement, rank), kElement * 150'994'944);
}

// The same in plans of whole runs: ring self-attention sends as much as tensor parallelism if the run file asks for the
// paper's form.
TEST(PublishedCosts, OfRingSelfAttentionEqualThoseOfTensorParallelism) {
  const auto sent = [](const std::vector<std::string>& keys, const std::string& what) {
    const Plan plan = base_plan(keys);
    int64_t bytes = 0;
    for (const CommunicationEntry& entry : plan.communication) {
      if (entry.what.starts_with(what)) bytes += std::ranges::max(entry.bytes);
    }
    return bytes / plan.architecture.num_hidden_layers;
  };
  auto keys = kSelfAttention;
  keys.push_back("parallelism.context_parallel_reduction=all_reduce");
  EXPECT_EQ(sent(keys, "attention"), kElement * 150'994'944);
  EXPECT_EQ(sent({"parallelism.tensor_parallel_degree=4", "parallelism.tensor_parallel_sequence=false"},
                 "activations, blocks"),
            kElement * 150'994'944);
  EXPECT_EQ(sent(kSelfAttention, "attention"), kElement * 150'994'944 / 8 * 6);
}

// The shapes of Llama-3-8B on eight ranks with one sequence of 65,536 tokens, as in table 2 of Fang and Zhao (2024),
// except that the gradients take one ring step fewer.
TEST(PublishedCosts, OfUnifiedSequenceParallelismForLlama8B) {
  const auto sent = [](const std::vector<std::string>& more) {
    std::vector<std::string> keys = {"model.hidden_size=4096",      "model.intermediate_size=14336",
                                     "model.num_hidden_layers=32",  "model.num_attention_heads=32",
                                     "model.num_key_value_heads=8", "model.max_position_embeddings=65536",
                                     "training.seq_len=65536",      "training.global_batch_size=1",
                                     "training.local_batch_size=1", "training.dtype=bfloat16"};
    keys.insert(keys.end(), more.begin(), more.end());
    const Plan plan = advised_plan(parse_config("", "run.toml", keys), {.ranks = 8, .vocab_size = 257});
    int64_t bytes = 0;
    for (const CommunicationEntry& entry : plan.communication) {
      if (entry.what.starts_with("attention")) bytes += std::ranges::max(entry.bytes);
    }
    return bytes / 32;
  };
  const std::string ulysses = "parallelism.context_parallel_ulysses=", ring = "parallelism.context_parallel_ring=";
  EXPECT_EQ(sent({ulysses + "8"}), 293'601'280);
  EXPECT_EQ(sent({ulysses + "4", ring + "2"}), 2 * 125'829'120 + 2 * 33'554'432 + 134'217'728 / 2);
  EXPECT_EQ(sent({ulysses + "2", ring + "4"}), 2 * 83'886'080 + 2 * 100'663'296 + 268'435'456 / 4 * 3);
  EXPECT_EQ(sent({ring + "8"}), 2 * 234'881'024 + 536'870'912 / 8 * 7);
}

// Ring Self-Attention, check 11 and table 2: 16AZH + 4BLZA/N + BZLL/N + BLH/N elements, with the optimizer state of
// Adam.
TEST(PublishedCosts, OfRingSelfAttentionsMemoryForBertBase) {
  const Plan plan = base_plan(kSelfAttention);
  int64_t weights = 0;
  for (const ParameterInfo& p : plan.parameters) {
    if (p.layer == 0 && p.name.find(".self_attn.") != std::string::npos) weights += p.size();
  }
  const MemoryBytes& memory = plan.memory_of(0);
  const int64_t state = memory.parameters + memory.gradients + memory.optimizer;
  const int64_t copies = state / (flat_layout(plan.parameters).elements * kElement);
  const int64_t kept = sequence_memory(self_attention(false), kBase, 0, 0).saved_bytes / kElement;
  const int64_t output = kSequences * plan.num_token_positions(0) * kHidden;
  EXPECT_EQ(copies * weights + kept + output, 91'226'112);
  EXPECT_EQ(kept, 4 * output + kSequences * kHeads * kTokens * kTokens / kRanks);
  // Tensors that the paper leaves out are not kept from forward to backward, in either form of the reduction.
  EXPECT_EQ(sequence_memory(self_attention(true), kBase, 0, 0).saved_bytes, kept * kElement);
}

// Unified Sequence Parallelism, check 11: the activations of a rank are proportional to its tokens.
TEST(PublishedCosts, ActivationsFollowTheTokensOfARank) {
  const auto memory = [](int sequences, const std::vector<std::string>& cut) {
    std::vector<std::string> keys = {fmt::format("training.local_batch_size={}", sequences)};
    keys.insert(keys.end(), cut.begin(), cut.end());
    return base_plan(keys).memory_of(0);
  };
  const std::string ring = "parallelism.context_parallel_ring=", ulysses = "parallelism.context_parallel_ulysses=";
  const int64_t alone = memory(2, {}).activations;
  EXPECT_EQ(memory(4, {ring + "2"}).activations, alone);
  EXPECT_EQ(memory(8, {ring + "4"}).activations, alone);
  EXPECT_EQ(2 * memory(2, {ring + "2"}).activations, alone);
  EXPECT_EQ(4 * memory(2, {ring + "4"}).activations, alone);
  // Ulysses keeps the output twice, split by heads and by tokens.
  const int64_t outputs = 12 * 2 * kTokens * kHidden * kElement;
  EXPECT_EQ(memory(4, {ulysses + "2"}).activations, alone + outputs);
  EXPECT_EQ(2 * memory(2, {ulysses + "2"}).activations, alone + outputs);
  // Ring self-attention keeps a row of scores per token and head; the other ways keep one number.
  const int64_t rows = 12 * 2 * kTokens * kHeads * (kTokens - 1) * kElement;
  EXPECT_EQ(memory(4, {ring + "2", kSelfAttention[2]}).activations, alone + rows);
}

}  // namespace
}  // namespace orthant::published_costs_test
