// The runs whose memory memory_test.cc measures.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace orthant::memory_test {

struct Case {
  const char* name;
  std::vector<std::string> keys;
  double bound = 0.005;
};

// Weights sharded over rows x columns and replicated over depth.
inline std::vector<std::string> mesh(int rows, int columns, int depth, std::vector<std::string> more = {}) {
  more.insert(more.begin(),
              {fmt::format("--run.ranks={}", rows * columns * depth),
               fmt::format("--parallelism.tensor_parallel_kind={}", depth > 1 ? "2.5d" : "2d"),
               fmt::format("--parallelism.tensor_parallel_mesh=[{},{},{}]", rows, columns, depth),
               "--model.num_attention_heads=8", fmt::format("--model.num_key_value_heads={}", std::max(4, columns))});
  return more;
}
inline std::vector<std::string> one_dimension(int columns, std::vector<std::string> more = {}) {
  more.insert(more.begin(),
              {fmt::format("--run.ranks={}", columns), fmt::format("--parallelism.tensor_parallel_degree={}", columns),
               "--model.num_attention_heads=8", fmt::format("--model.num_key_value_heads={}", std::max(4, columns))});
  return more;
}

// Linformer with its projections and the sequences sharded over two ranks.
inline const std::vector<std::string> kLinformer = {
    "--model.objective=masked", "--model.linformer_length=32", "--parallelism.context_parallel_ring=2",
    "--parallelism.context_parallel_attention=linformer", "--parallelism.context_parallel_placement=contiguous"};
inline const std::string kLengthOf256 = "--model.linformer_length=256";
inline const std::vector<std::string> kManySummaries = {"--model.objective=masked", kLengthOf256};
inline std::vector<std::string> with(std::vector<std::string> keys, const std::string& more) {
  keys.push_back(more);
  return keys;
}

// Long sequences in a narrow model, so that attention over sharded sequences takes a large part of the memory.
inline std::vector<std::string> narrow(std::vector<std::string> more) {
  more.insert(more.end(), {"--model.hidden_size=96", "--model.intermediate_size=128", "--model.num_hidden_layers=3",
                           "--model.vocab_size=512", "--model.max_position_embeddings=512", "--training.seq_len=512",
                           "--training.global_batch_size=4"});
  return more;
}
inline const std::string kWithUlysses = "--parallelism.context_parallel_ulysses=2",
                  kWithRing = "--parallelism.context_parallel_ring=2";
inline const std::string kTwoRings = "--parallelism.context_parallel_attention=ring_self_attention";
inline const std::string kTwoKeyHeads = "--model.num_key_value_heads=2";
inline const std::string kTwoCopies = "--parallelism.data_parallel_replicate_degree=2";
inline const std::string kFourRanks = "--run.ranks=4", kFourMicrobatches = "--training.local_batch_size=1";
inline const std::string kFull = "--activation_checkpoint.mode=full", kHalf = "--training.dtype=bfloat16";

inline const std::vector<std::string> kLosses = {"--model.final_logit_softcapping=30", "--training.label_smoothing=0.1",
                                          "--training.z_loss=1e-4"};
inline const std::vector<std::string> kBiases = {"--model.attention_bias=true", "--model.mlp_bias=true"};

// Enough tokens that the residual stream moves in panels: the sum of one panel overlaps with the next panel's product.
inline std::vector<std::string> in_panels(std::vector<std::string> keys) {
  keys.insert(keys.end(), {"--training.local_batch_size=16", "--training.global_batch_size=16"});
  return keys;
}
// Enough tokens for the largest number of panels.
inline std::vector<std::string> in_many_panels(std::vector<std::string> keys) {
  keys.insert(keys.end(), {"--training.local_batch_size=32", "--training.global_batch_size=32"});
  return keys;
}
// Models and batches in which other terms of the plan decide than above: a small vocabulary, narrow MLPs, few layers.
struct Sizes {
  int hidden, intermediate, layers, vocabulary;
};
struct BatchSizes {
  int tokens, global, local;
};
inline std::vector<std::string> model(Sizes m, BatchSizes b, std::vector<std::string> keys, int key_heads = 4) {
  const auto add = [&](const char* key, int value) { keys.push_back(fmt::format("--{}={}", key, value)); };
  add("model.hidden_size", m.hidden), add("model.intermediate_size", m.intermediate);
  add("model.num_hidden_layers", m.layers), add("model.vocab_size", m.vocabulary);
  add("model.num_key_value_heads", key_heads), add("model.max_position_embeddings", 512);
  add("training.seq_len", b.tokens), add("training.global_batch_size", b.global);
  add("training.local_batch_size", b.local);
  return keys;
}
inline const std::string kNoSequence = "--parallelism.tensor_parallel_sequence=false",
                         kSumma = "--parallelism.tensor_parallel_product=summa", kHeadNorms = "--model.qk_norm=true",
                         kCappedScores = "--model.attn_logit_softcapping=20", kGelu = "--model.mlp=gelu_tanh",
                         kLayerNorm = "--model.norm=layer_norm", kLearned = "--model.positions=learned";

// The reduction of a small unit may be complete before the peak, and its buffers free. The plan counts them.
constexpr double kReduced = 0.03;
inline std::vector<std::string> zero_3(const std::string& reshard, std::vector<std::string> keys) {
  keys.insert(keys.end(), {"--parallelism.zero_stage=3", "--parallelism.zero_reshard=" + reshard});
  return keys;
}
inline std::vector<std::string> in_backward(std::vector<std::string> keys) {
  keys.insert(keys.end(), {"--optimizer.in_backward=true", "--training.max_norm=0", "--training.local_batch_size=8"});
  return keys;
}
// An update of Muon in backward is the peak where its matrices are larger than the activations.
inline std::vector<std::string> wide_muon_in_backward(std::vector<std::string> keys) {
  keys.insert(keys.end(), {"--optimizer.name=muon", "--model.num_attention_heads=8", kFull});
  return in_backward(model({192, 4096, 2, 272}, {16, 8, 8}, std::move(keys)));
}
inline std::vector<std::string> pipeline(const std::string& schedule, std::vector<std::string> keys) {
  keys.insert(keys.end(), {"--parallelism.pipeline_parallel_degree=2", "--model.num_hidden_layers=4",
                           "--parallelism.pipeline_parallel_schedule=" + schedule});
  return keys;
}

// Two pipeline ranks that shard the vocabulary, with two data ranks.
inline std::vector<std::string> sharded_vocabulary(const std::string& order, std::vector<std::string> keys) {
  keys.insert(keys.end(), {kFourRanks, "--parallelism.vocabulary_parallel=" + order});
  return pipeline("1f1b", std::move(keys));
}

inline const std::string kEverySecond = "--activation_checkpoint.layers=2";
inline std::vector<std::string> selective(const std::string& operations, std::vector<std::string> keys = {}) {
  keys.insert(keys.end(),
              {"--activation_checkpoint.mode=selective", "--activation_checkpoint.operations=" + operations});
  return keys;
}

inline std::vector<Case> planned_cases() {
  return {
      Case{"float32", {}}, Case{"bfloat16", {"--training.dtype=bfloat16"}},
      Case{"float64", {"--training.dtype=float64"}}, Case{"float32_recompute", {"--activation_checkpoint.mode=full"}},
      Case{"bfloat16_recompute", {"--training.dtype=bfloat16", "--activation_checkpoint.mode=full"}},
      Case{"norms_swiglu", selective("norms,swiglu")}, Case{"attention", selective("attention")},
      Case{"mlp_dropout", selective("mlp", {"--model.dropout=0.1"})},
      Case{"norms_mlp_bfloat16", selective("norms,mlp", {kHalf})}, Case{"every_second_block", {kFull, kEverySecond}},
      Case{"norms_attention_swiglu_every_second_block", selective("norms,attention,swiglu", {kEverySecond})},
      Case{"zero_3_microbatch_norms_mlp", selective("norms,mlp", zero_3("microbatch", {kFourMicrobatches}))},
      Case{"zero_bubble_every_second_block",
           selective("norms,mlp", pipeline("zb_h1", {"--training.local_batch_size=2", kEverySecond}))},
      Case{"narrow_attention_qk_norm", selective("attention", narrow({kHeadNorms}))},
      Case{"ring_attention_norms", selective("attention,norms", narrow({kWithRing})), 0.02},
      Case{"ulysses_attention_bfloat16", selective("attention", narrow({kWithUlysses, kHalf}))},
      Case{"mesh_2x2x1_norms_swiglu", selective("norms,swiglu", mesh(2, 2, 1))},
      Case{"mesh_2x2x1_summa_mlp", selective("mlp", mesh(2, 2, 1, {kSumma}))},
      Case{"mesh_1x2x1_panels_norms_mlp", selective("norms,mlp", in_panels(mesh(1, 2, 1)))},
      Case{"tensor_sequence_attention_mlp_gelu",
           selective("attention,mlp", in_panels(one_dimension(2, {kGelu, kLayerNorm})))},
      Case{"sgd", {"--optimizer.name=sgd"}}, Case{"sgd_bfloat16", {"--optimizer.name=sgd", kHalf}},
      Case{"sgd_without_momentum", {"--optimizer.name=sgd", "--optimizer.momentum=0"}},
      Case{"microbatch_1", {"--training.local_batch_size=1"}},
      Case{"microbatch_8", {"--training.local_batch_size=8", "--training.global_batch_size=16"}},
      Case{"uneven", {"--training.global_batch_size=13"}},
      Case{"zero_1", {"--run.ranks=4", "--parallelism.zero_stage=1"}},
      Case{"zero_1_copies", {"--run.ranks=4", "--parallelism.zero_stage=1", kTwoCopies}},
      Case{"zero_1_bfloat16_recompute", {"--parallelism.zero_stage=1", kHalf, kFull}},
      Case{"zero_2", {"--run.ranks=4", "--parallelism.zero_stage=2"}},
      Case{"zero_2_copies", {"--run.ranks=4", "--parallelism.zero_stage=2", kTwoCopies}},
      Case{"zero_3_microbatch_copies", zero_3("microbatch", {"--run.ranks=4", kTwoCopies})},
      Case{"zero_2_bfloat16_recompute", {"--parallelism.zero_stage=2", kHalf, kFull, kFourMicrobatches}},
      Case{"zero_2_pipeline", pipeline("1f1b", {kFourRanks, kFourMicrobatches, "--parallelism.zero_stage=2"}),
           kReduced},
      Case{"zero_2_zero_bubble",
           pipeline("zb_h1", {kFourRanks, "--training.local_batch_size=2", "--training.global_batch_size=16",
                              "--parallelism.zero_stage=2"}),
           kReduced},
      Case{"zero_3_step", {"--run.ranks=4", "--parallelism.zero_stage=3"}},
      Case{"zero_3_step_microbatches", zero_3("step", {kFourMicrobatches})},
      Case{"zero_3_never", zero_3("never", {"--run.ranks=4"})},
      Case{"zero_3_never_bfloat16", zero_3("never", {kHalf, kFourMicrobatches})},
      Case{"zero_3_microbatch", zero_3("microbatch", {"--run.ranks=4"})},
      Case{"zero_3_microbatches_recompute", zero_3("microbatch", {kFull, kFourMicrobatches})},
      Case{"zero_3_microbatch_recompute", zero_3("microbatch", {kFull}), kReduced},
      Case{"zero_3_microbatch_bfloat16_recompute", zero_3("microbatch", {kHalf, kFull})},
      Case{"zero_3_microbatch_tied_dropout",
           zero_3("microbatch", {"--model.tie_word_embeddings=true", "--model.dropout=0.1"})},
      Case{"zero_3_microbatch_mesh", mesh(2, 2, 1, zero_3("microbatch", {"--run.ranks=8"}))},
      Case{"zero_3_microbatch_pipeline", pipeline("1f1b", zero_3("microbatch", {kFourRanks, kFourMicrobatches})),
           kReduced},
      // Timing decides which messages between slices of the vocabulary are under way at the peak.
      Case{"zero_3_step_vocabulary", sharded_vocabulary("algorithm_2", zero_3("step", {kFourMicrobatches})), kReduced},
      Case{"zero_2_vocabulary", sharded_vocabulary("algorithm_1", {kFourMicrobatches, "--parallelism.zero_stage=2"}),
           0.02},
      Case{"zero_3_microbatch_vocabulary", sharded_vocabulary("algorithm_1", zero_3("microbatch", {kFourMicrobatches})),
           kReduced},
      Case{"zero_3_step_v_half", pipeline("v_half", zero_3("step", {kFourRanks, kFourMicrobatches}))},
      Case{"muon", {"--optimizer.name=muon"}},
      // An update of Muon is the peak where its matrices are larger than the activations.
      Case{"muon_wide",
           model({192, 4096, 1, 272}, {16, 2, 1}, {"--optimizer.name=muon", "--model.num_attention_heads=8", kFull})},
      Case{"in_backward", in_backward({})},
      Case{"in_backward_zero_1_bfloat16", in_backward({"--parallelism.zero_stage=1", kHalf})},
      Case{"in_backward_zero_3", zero_3("microbatch", in_backward({"--run.ranks=4"}))},
      Case{"in_backward_copies_recompute",
           in_backward({"--run.ranks=4", "--parallelism.zero_stage=2", kTwoCopies, kFull})},
      Case{"in_backward_muon", in_backward({"--optimizer.name=muon", "--run.ranks=1"})},
      Case{"in_backward_muon_2_ranks", in_backward({"--optimizer.name=muon", "--run.ranks=2"})},
      Case{"in_backward_muon_4_ranks", in_backward({"--optimizer.name=muon", "--run.ranks=4"})},
      Case{"in_backward_muon_wide_2_ranks", wide_muon_in_backward({"--run.ranks=2"})},
      Case{"in_backward_muon_wide_4_ranks", wide_muon_in_backward({"--run.ranks=4"})},
      Case{"mesh_2x2x1_muon", mesh(2, 2, 1, {"--optimizer.name=muon"})},
      Case{"mesh_2x1x1_muon_wide",
           mesh(2, 1, 1, model({192, 4096, 1, 272}, {16, 2, 1}, {"--optimizer.name=muon", kFull}))},
      Case{"in_backward_recompute_parts",
           selective("norms,swiglu", in_backward({"--run.ranks=4", "--parallelism.zero_stage=2"}))},
      Case{"muon_zero_1", {"--optimizer.name=muon", "--run.ranks=4", "--parallelism.zero_stage=1"}},
      Case{"tied_dropout", {"--model.tie_word_embeddings=true", "--model.dropout=0.1"}}, Case{"losses", kLosses},
      Case{"bfloat16_losses", with(kLosses, kHalf)}, Case{"tensor_sequence_losses", one_dimension(2, kLosses)},
      Case{"mesh_2x2x1_losses", mesh(2, 2, 1, kLosses)}, Case{"biases", kBiases},
      Case{"bfloat16_biases_recompute", with(with(kBiases, kHalf), kFull)},
      Case{"mesh_2x2x1_biases", mesh(2, 2, 1, kBiases)},
      Case{"tensor_sequence_panels_biases", in_panels(one_dimension(2, kBiases))},
      Case{"capped_scores", {kCappedScores}}, Case{"capped_scores_bfloat16", {kCappedScores, kHalf}, 0.02},
      Case{"ring_capped_scores", narrow({kWithRing, kCappedScores}), 0.02},
      Case{"ring_capped_scores_bfloat16", narrow({kWithRing, kCappedScores, kHalf}), 0.02},
      Case{"ring_capped_scores_contiguous",
           narrow({kWithRing, kCappedScores, "--parallelism.context_parallel_placement=contiguous"}), 0.02},
      Case{"ring_capped_scores_stripe",
           narrow({kWithRing, kCappedScores, "--parallelism.context_parallel_placement=stripe"}), 0.02},
      Case{"ring_capped_scores_single_key_head", narrow({kWithRing, kCappedScores, "--model.num_key_value_heads=1"}),
           0.02},
      Case{"qk_norm", {kHeadNorms}}, Case{"qk_norm_bfloat16_recompute", {kHeadNorms, kHalf, kFull}},
      Case{"mesh_2x2x1_qk_norm", mesh(2, 2, 1, {kHeadNorms})},
      Case{"ring_qk_norm", narrow({kWithRing, kHeadNorms}), 0.02}, Case{"gelu", {kGelu}},
      Case{"gelu_bfloat16_recompute", {kGelu, kHalf, kFull}}, Case{"mesh_2x2x1_gelu", mesh(2, 2, 1, {kGelu})},
      Case{"learned_positions", {kLearned}}, Case{"learned_positions_bfloat16", {kLearned, kHalf}},
      Case{"learned_positions_sharded", one_dimension(2, {kLearned})}, Case{"layer_norm", {kLayerNorm}},
      Case{"layer_norm_bfloat16_recompute", {kLayerNorm, kHalf, kFull}},
      Case{"mesh_2x2x1_layer_norm", mesh(2, 2, 1, {kLayerNorm})},
      Case{"tensor_sequence_layer_norm", one_dimension(2, {kLayerNorm})},
      Case{"bfloat16_dropout", {"--training.dtype=bfloat16", "--model.dropout=0.1"}}, Case{"linformer", kLinformer},
      Case{"linformer_bfloat16", with(kLinformer, "--training.dtype=bfloat16")},
      Case{"linformer_capped_scores", narrow(with(kManySummaries, kCappedScores)), 0.02},
      Case{"linformer_capped_scores_bfloat16", narrow(with(with(kManySummaries, kCappedScores), kHalf)), 0.02},
      Case{"linformer_capped_scores_ring", narrow(with(with(kLinformer, kLengthOf256), kCappedScores)), 0.02},
      Case{"linformer_capped_scores_ring_bfloat16",
           narrow(with(with(with(kLinformer, kLengthOf256), kCappedScores), kHalf)), 0.02},
      Case{"linformer_recompute", with(kLinformer, "--activation_checkpoint.mode=full")}, Case{"narrow", narrow({})},
      Case{"narrow_recompute", narrow({kFull})}, Case{"ulysses", narrow({kWithUlysses})},
      Case{"ulysses_recompute", narrow({kWithUlysses, kFull})},
      Case{"ulysses_bfloat16_recompute", narrow({kWithUlysses, kFull, kHalf})}, Case{"ring", narrow({kWithRing}), 0.02},
      Case{"ring_recompute", narrow({kWithRing, kFull}), 0.02}, Case{"ring_bfloat16", narrow({kWithRing, kHalf}), 0.02},
      Case{"ring_bfloat16_recompute", narrow({kWithRing, kFull, kHalf}), 0.02},
      Case{"ring_self_attention", narrow({kWithRing, kTwoRings}), 0.02},
      Case{"ring_self_attention_recompute", narrow({kWithRing, kTwoRings, kFull}), 0.02},
      Case{"ring_self_attention_bfloat16", narrow({kWithRing, kTwoRings, kHalf}), 0.02},
      Case{"tensor_sequence", one_dimension(2)}, Case{"tensor_sequence_panels", in_panels(one_dimension(2))},
      Case{"tensor_panels", in_panels(one_dimension(2, {kNoSequence}))}, Case{"mesh_1x2x1", mesh(1, 2, 1)},
      Case{"mesh_1x2x1_panels", in_panels(mesh(1, 2, 1))},
      Case{"mesh_1x2x1_panels_recompute", in_panels(mesh(1, 2, 1, {kFull}))}, Case{"mesh_2x2x1", mesh(2, 2, 1)},
      Case{"mesh_2x2x1_summa", mesh(2, 2, 1, {kSumma})}, Case{"mesh_2x1x2_bfloat16", mesh(2, 1, 2, {kHalf})},
      Case{"mesh_4x1x1", mesh(4, 1, 1)}, Case{"tensor_4", one_dimension(4, {kNoSequence})},
      Case{"tensor_sequence_4", one_dimension(4)}, Case{"tensor_8", one_dimension(8, {kNoSequence})},
      Case{"tensor_sequence_8", one_dimension(8)},
      // The last reduction may have completed before the logits reach their peak.
      Case{"tensor_sequence_8_panels", in_panels(one_dimension(8)), 0.02}, Case{"mesh_1x4x1", mesh(1, 4, 1)},
      Case{"mesh_1x4x1_recompute", mesh(1, 4, 1, {kFull})}, Case{"mesh_1x8x1", mesh(1, 8, 1)},
      Case{"mesh_1x8x1_panels", in_panels(mesh(1, 8, 1))}, Case{"mesh_4x4x1", in_panels(mesh(4, 4, 1))},
      Case{"mesh_2x4x2", in_panels(mesh(2, 4, 2))}, Case{"mesh_4x4x1_summa", in_panels(mesh(4, 4, 1, {kSumma}))},
      Case{"mesh_2x2x1_summa_panels", in_panels(mesh(2, 2, 1, {kSumma}))},
      Case{"mesh_2x2x1_summa_recompute", mesh(2, 2, 1, {kSumma, kFull})},
      Case{"mesh_2x1x1_recompute", mesh(2, 1, 1, {kFull})}, Case{"mesh_2x1x2_recompute", mesh(2, 1, 2, {kFull})},
      Case{"mesh_2x2x1_recompute", mesh(2, 2, 1, {kFull})}, Case{"mesh_4x1x1_recompute", mesh(4, 1, 1, {kFull})},
      Case{"mesh_4x1x1_panels_recompute", in_panels(mesh(4, 1, 1, {kFull}))}, Case{"mesh_2x1x2", mesh(2, 1, 2)},
      Case{"mesh_2x2x1_many_panels", in_many_panels(mesh(2, 2, 1))},
      Case{"tensor_bfloat16", one_dimension(2, {kNoSequence, kHalf})},
      Case{"mesh_1x2x1_bfloat16_many_panels", in_many_panels(mesh(1, 2, 1, {kHalf}))},
      Case{"mesh_2x2x1_bfloat16", mesh(2, 2, 1, {kHalf})},
      Case{"mesh_2x2x1_ring", mesh(2, 2, 1, {"--run.ranks=8", kWithRing})},
      // Columns exchange parts of key heads.
      Case{"tensor_4_shared_key_heads", with(one_dimension(4), kTwoKeyHeads)},
      Case{"mesh_1x4x1_shared_key_heads_bfloat16", with(mesh(1, 4, 1, {kHalf}), "--model.num_key_value_heads=1")},
      Case{"narrow_mlp_shared_key_heads_recompute",
           model({192, 128, 2, 272}, {256, 8, 4}, mesh(2, 4, 1, {kFull}), /*key_heads=*/2)},
      Case{"narrow_mlp_split_key_heads",
           model({192, 128, 2, 272}, {256, 8, 4},
                 {"--run.ranks=2", "--parallelism.tensor_parallel_degree=2", "--model.num_attention_heads=6"},
                 /*key_heads=*/3)},
      Case{"zero_bubble_shared_key_heads",
           pipeline("zb_h1", {kFourRanks, "--training.local_batch_size=2", "--parallelism.tensor_parallel_degree=2",
                              "--model.num_attention_heads=8", "--model.num_key_value_heads=1"})},
      // Results of lookups move over rows, not the table.
      Case{"many_words_mesh", model({192, 128, 1, 4096}, {16, 8, 8}, mesh(4, 1, 1))},
      Case{"mesh_2x1x2_ulysses", mesh(2, 1, 2, {"--run.ranks=8", kWithUlysses})},
      Case{"wide_mlp_recompute", model({192, 680, 1, 2048}, {256, 4, 4}, one_dimension(4, {kFull}))},
      Case{"narrow_mlp_bfloat16", model({192, 128, 1, 272}, {128, 16, 16}, one_dimension(2, {kHalf})), 0.01},
      Case{"narrow_mesh_bfloat16_recompute", model({96, 128, 2, 272}, {512, 16, 16}, mesh(1, 4, 1, {kHalf, kFull}), 8)},
      Case{"narrow_mlp_mesh_recompute", model({192, 128, 4, 272}, {128, 16, 8}, mesh(2, 2, 1, {kFull}))},
      Case{"few_words_mesh_recompute", model({192, 344, 4, 272}, {256, 8, 4}, mesh(2, 2, 1, {kFull}))},
      Case{"many_words_bfloat16_recompute", model({96, 64, 1, 2048}, {256, 32, 16}, mesh(2, 2, 1, {kHalf, kFull}))},
      // libtorch reorders the embedding table in bfloat16 and pads its copy to whole blocks.
      Case{"odd_width_bfloat16",
           model({33, 64, 1, 1030}, {16, 8, 4}, {kHalf, "--model.num_attention_heads=4", "--model.head_dim=8"})},
      Case{"few_tokens_summa", model({96, 1024, 1, 272}, {16, 8, 8}, mesh(1, 4, 1, {kSumma}))}};
}

}  // namespace orthant::memory_test
