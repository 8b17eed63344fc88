// The planned memory of a pipeline rank equals the memory of its tensors within 3 %, with ranks as threads. The largest
// number of microbatches between F and B or W equals the planned one.
#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/support/pipelines.h"
#include "tests/support/recomputations.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/thread_memory.h"

namespace orthant::pipeline_memory_test {
namespace {

// Enough layers for eight stages, and enough tokens that activations are most of a rank's memory.
const TinyRun& wide_run() {
  static const TinyRun run({"model.num_hidden_layers=8", "model.hidden_size=96", "model.intermediate_size=256",
                            "model.num_attention_heads=4", "model.num_key_value_heads=2", "model.vocab_size=512",
                            "model.max_position_embeddings=64", "training.seq_len=64", "training.dtype=float32",
                            "training.global_batch_size=16", "training.local_batch_size=2"});
  return run;
}

constexpr int kStages = 2;

struct Held {
  int64_t peak = 0;
  int live = 0;
};

// Measures the second step, by rank. The first step also makes the tiles and plans of products, once.
std::vector<Held> measure(const Plan& plan) {
  ThreadMemory::install();
  std::vector<Held> ranks(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport});
    Session session(plan, wide_run().data().train, comm);
    session.weights().initialize(1);
    for (const int64_t step : {1, 2}) {
      ThreadMemory::reset();
      if (plan.post_validates()) session.advance(step, {}, [](const StepResult&) {});
      if (!plan.post_validates()) session.update(step, session.gradients(step, {}));
    }
    if (plan.post_validates()) {  // the peak of step 2 may precede the copies
      ThreadMemory::reset();
      session.advance(3, {}, [](const StepResult&) {});
      session.finalize_pending_step([](const StepResult&) {});
    }
    ranks[static_cast<size_t>(rank)] = {ThreadMemory::peak(), session.peak_in_flight()};
  });
  return ranks;
}

constexpr double kWithSums = 0.05;  // bound if small weights are reduced over data ranks
// Bound if blocks keep so little that one message of the vocabulary layers, 48 KiB, is 0.4 % to 0.9 % of a rank. A rank
// that is ahead of others holds up to three more messages than planned, and one that is behind has freed as many.
constexpr double kWithMessages = 0.05;

// Messages between stages are held as planned. Other messages in flight depend on the other ranks. Reductions of
// gradients may complete before the row ends, while the plan counts their memory to its end.
void expect_planned(const Plan& plan, const std::string& what, double bound = 0.03) {
  const std::vector<Held> held = measure(plan);
  for (size_t rank = 0; rank < held.size(); ++rank) {
    const auto planned = static_cast<double>(plan.memory_of(static_cast<int>(rank)).total());
    EXPECT_NEAR(planned / static_cast<double>(held[rank].peak), 1, bound) << what << ", rank " << rank;
    const int live = plan.timeline.peak_in_flight[static_cast<size_t>(plan.pipeline_rank(static_cast<int>(rank)))];
    EXPECT_EQ(held[rank].live, live) << what << ", rank " << rank;
  }
}

// One rank's plan is exact except for small tensors that it leaves out: the sample numbers and sequence positions of a
// microbatch, the sum of the losses and, in backward, three scalars of the loss.
TEST(PipelineMemory, OfOneRankIsExact) {
  constexpr int64_t kNumbers = (2 + 64) * sizeof(int64_t), kOfTheLoss = 4 * sizeof(double);
  const std::string kFull = "activation_checkpoint.mode=full", kDropout = "model.dropout=0.1";
  const auto expect_exact = [&](const Words& words) {
    const Plan plan = wide_run().plan(1, words);
    const int64_t more = measure(plan)[0].peak - plan.memory_of(0).total();
    EXPECT_GE(more, kNumbers) << join(words, " ");
    EXPECT_LE(more, kNumbers + kOfTheLoss) << join(words, " ");
  };
  for (const Words& words :
       {Words{}, Words{kFull}, Words{kDropout}, Words{kFull, kDropout}, Words{"model.tie_word_embeddings=true"}}) {
    expect_exact(words);
  }
  for (const Recomputation& recompute : all_recomputations()) {
    if (recompute.names[0] != kWholeBlock) expect_exact(selective(recompute.names));
  }
  for (const int layers : {2, 3, 8}) expect_exact(selective({"norms", "mlp"}, layers, {kDropout}));
  for (const int layers : {2, 3, 8}) expect_exact({kFull, fmt::format("activation_checkpoint.layers={}", layers)});
}

SWEEP_TEST(PipelineMemory, IsAsPlanned) {
  std::vector<std::pair<const char*, int>> cases;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min"}) {
    for (const int ranks : {2, 3, 4}) cases.emplace_back(schedule, ranks);
  }
  for (const auto& [schedule, ranks] : sweep.of(cases, 8)) {
    expect_planned(wide_run().plan(ranks, pipeline(schedule, ranks)), fmt::format("{} on {}", schedule, ranks));
  }
}

// A stage without layers sends on the tensor that it holds, which therefore takes memory once.
TEST(PipelineMemory, OfStagesWithoutLayersIsAsPlanned) {
  const Words shallow = {"model.num_hidden_layers=3"};
  for (const char* schedule : {"1f1b", "zb_v", "v_half"}) {
    expect_planned(wide_run().plan(4, pipeline(schedule, 4, shallow)), fmt::format("3 layers, {}", schedule));
  }
  expect_planned(wide_run().plan(3, pipeline("1f1b", 3, {"parallelism.pipeline_parallel_layers=5,0,3"})), "5, 0, 3");
}

TEST(PipelineMemory, WithCopiesOfWhatAStepIsUndoneFrom) {
  for (const char* schedule : {"1f1b", "zb_h2", "zb_v"}) {
    const Words more = {"parallelism.pipeline_parallel_post_validation=true", "training.max_norm=1e6"};
    expect_planned(wide_run().plan(2, pipeline(schedule, 2, more)), fmt::format("{}, copies", schedule));
  }
}

SWEEP_TEST(PipelineMemory, BesideTheRest) {
  struct Case {
    const char* name;
    int ranks;
    Words words;
  };
  const std::string p = "parallelism.";
  const std::string k2d = p + "tensor_parallel_kind=2d";
  const std::string kFull = "activation_checkpoint.mode=full", kHalf = "training.dtype=bfloat16";
  const std::string kTied = "model.tie_word_embeddings=true", kDropout = "model.dropout=0.1";
  const TempFolder folder;  // forwards ascend, backwards descend: microbatch 0 completes the gradients
  const std::string last_first = folder.write("last_first.csv",
                                              "0F0,0F1,0F2,0F3,0B3,0B2,0B1,0B0\n"
                                              "1F0,1F1,1F2,1F3,1B3,1B2,1B1,1B0\n");
  const std::vector<Case> cases = {
      {"data, backwards from the last", 4, pipeline(last_first, 2, {p + "data_parallel_degree=2"})},
      {"uneven layers, zb_v", 2, pipeline("zb_v", 2, {p + "pipeline_parallel_layers=3,2,2,1"})},
      {"empty stage, zb_v", 2, pipeline("zb_v", 2, {p + "pipeline_parallel_layers=3,3,2,0"})},
      {"dual_pipe_v", 2, pipeline("dual_pipe_v", 2)},
      {"dual_pipe_v, four ranks", 4, pipeline("dual_pipe_v", 4)},
      {"three chunks", 2, pipeline("interleaved_1f1b", 2, {p + "pipeline_parallel_stages_per_rank=3"})},
      {"data", 4, pipeline("1f1b", 2, {p + "data_parallel_degree=2"})},
      {"data, zb_v", 4, pipeline("zb_v", 2, {p + "data_parallel_degree=2"})},
      {"ring", 4, pipeline("zb_h1", 2, {p + "context_parallel_ring=2"})},
      {"ulysses", 4, pipeline("v_half", 2, {p + "context_parallel_ulysses=2"})},
      {"recompute", 2, pipeline("1f1b", 2, {kFull})},
      {"recompute, split", 2, pipeline("zb_h1", 2, {kFull})},
      {"recompute, v_min", 2, pipeline("v_min", 2, {kFull})},
      {"recompute, many wait for W", 4, pipeline("zb_h2", 4, {kFull})},
      {"selective", 2, pipeline("1f1b", 2, selective({"norms", "swiglu"}))},
      {"selective, split", 2, pipeline("zb_h1", 2, selective({"norms", "attention", "mlp"}))},
      {"selective, v_min, every second block", 2, pipeline("v_min", 2, selective({"mlp"}, 2))},
      {"selective, many wait for W", 4, pipeline("zb_h2", 4, selective({"norms", "mlp"}, 2, {kDropout}))},
      {"every third block", 2, pipeline("zb_v", 2, {kFull, "activation_checkpoint.layers=3"})},
      {"selective, ring", 4, pipeline("zb_h1", 2, selective({"attention"}, 1, {p + "context_parallel_ring=2"}))},
      {"rows of scores, many wait for W", 4,
       pipeline("zb_h2", 2, {p + "context_parallel_ring=2", p + "context_parallel_attention=ring_self_attention"})},
      {"bfloat16", 2, pipeline("1f1b", 2, {kHalf})},
      {"bfloat16, split", 2, pipeline("zb_h2", 2, {kHalf})},
      {"bfloat16, recompute", 2, pipeline("1f1b", 2, {kHalf, kFull})},
      {"tied", 2, pipeline("1f1b", 2, {kTied})},
      {"tied, zb_v", 2, pipeline("zb_v", 2, {kTied})},
      {"dropout", 2, pipeline("1f1b", 2, {kDropout})},
      {"dropout, split", 2, pipeline("zb_h1", 2, {kDropout})},
      {"learned positions, split", 2, pipeline("zb_h1", 2, {"model.positions=learned"})},
      {"uneven layers", 3, pipeline("1f1b", 3, {p + "pipeline_parallel_layers=5,1,2"})},
      {"uneven layers, split", 3, pipeline("zb_h1", 3, {p + "pipeline_parallel_layers=1,5,2"})},
      {"uneven batch, interleaved", 2, pipeline("interleaved_1f1b", 2, {"training.global_batch_size=7"})},
      {"uneven batch", 2, pipeline("1f1b", 2, {"training.global_batch_size=13"})},
      {"tensor", 4, pipeline("1f1b", 2, {p + "tensor_parallel_degree=2"})},
      {"tensor [2,1,1]", 4, pipeline("1f1b", 2, {k2d, p + "tensor_parallel_mesh=[2,1,1]"})},
      {"tensor [1,2,1]", 4, pipeline("1f1b", 2, {k2d, p + "tensor_parallel_mesh=[1,2,1]"})}};
  for (const Case& c : sweep.of(cases, 9)) expect_planned(wide_run().plan(c.ranks, c.words), c.name);
}

// A vocabulary whose rows are most of a rank's memory, together with the tensors that S keeps.
SWEEP_TEST(PipelineMemory, OfAVocabularyOverRanks) {
  const std::string p = "parallelism.", order = p + "vocabulary_parallel=", kLarge = "model.vocab_size=8003";
  const std::string kHalf = "training.dtype=bfloat16", kCapped = "model.final_logit_softcapping=30";
  const std::string kSmoothed = "training.label_smoothing=0.1", kDropout = "model.dropout=0.1";
  const std::string kLearned = "model.positions=learned", kFull = "activation_checkpoint.mode=full";
  struct Case {
    int ranks;
    Words words;
    double bound = 0.03;
  };
  const std::vector<Case> cases = {
      {2, pipeline("1f1b", 2, {order + "algorithm_2", kLarge})},
      {4, pipeline("1f1b", 4, {order + "algorithm_2", kLarge})},
      {4, pipeline("1f1b", 4, {order + "algorithm_1", kLarge})},
      {2, pipeline("zb_h1", 2, {order + "naive", kLarge})},
      {4, pipeline("zb_v", 4, {order + "algorithm_2", kLarge})},
      {4, pipeline("v_half", 4, {order + "algorithm_1", kLarge})},
      {3, pipeline("interleaved_1f1b", 3, {order + "algorithm_2", kLarge})},
      {2, pipeline("1f1b", 2, {order + "interlaced", kLarge})},
      {2, pipeline("1f1b", 2, {order + "algorithm_2", kLarge, kHalf})},
      {2, pipeline("1f1b", 2, {order + "algorithm_2", kLarge, kCapped})},
      {2, pipeline("1f1b", 2, {order + "naive", kLarge, kCapped})},
      {2, pipeline("1f1b", 2, {order + "algorithm_2", kLarge, kSmoothed})},
      {2, pipeline("1f1b", 2, {order + "algorithm_2", kLarge, kCapped, kSmoothed})},
      {4, pipeline("zb_v", 4, {order + "algorithm_1", kLarge, kCapped, kSmoothed})},
      {2, pipeline("1f1b", 2, {order + "algorithm_2", kLarge, kCapped, kSmoothed, kHalf})},
      {2, pipeline("1f1b", 2, {order + "algorithm_2", kLarge, "model.tie_word_embeddings=true"})},
      {4, pipeline("zb_v", 4, {order + "algorithm_2", kLearned, kDropout}), kWithMessages},
      // Blocks that recompute keep so little that the embedding of each microbatch is seen.
      {4, pipeline("1f1b", 4, {order + "algorithm_2", kFull, kDropout}), kWithMessages},
      {4, pipeline("zb_h1", 4, {order + "algorithm_1", kFull, kLearned}), kWithMessages},
      {4, pipeline("1f1b", 2, {order + "algorithm_2", kLarge, p + "data_parallel_degree=2"}), kWithSums}};
  for (const Case& c : sweep.of(cases, 6)) {
    std::string name;
    for (const std::string& word : c.words) name += word.substr(word.find('.') + 1) + " ";
    expect_planned(wide_run().plan(c.ranks, c.words), name, c.bound);
  }
}

// The same if each pipeline rank is a tensor mesh that shards its rows.
SWEEP_TEST(PipelineMemory, OfAVocabularyOverMeshes) {
  const std::string order = "parallelism.vocabulary_parallel=", kLarge = "model.vocab_size=8003";
  for (const TensorCut& mesh :
       sweep.of(std::vector<TensorCut>{one_dimension(2, {}, kStages), one_dimension(2, {kNoSequence}, kStages),
                                       grid(2, 2, 1, {}, kStages), grid(2, 1, 1, {}, kStages),
                                       grid(1, 2, 1, {}, kStages), grid(1, 1, 2, {}, kStages)},
                2)) {
    for (const std::string how : sweep.of(std::vector{"algorithm_1", "naive", "algorithm_2"}, 1)) {
      Words words = mesh.keys;
      words.insert(words.end(), {order + how, kLarge});
      expect_planned(wide_run().plan(mesh.ranks, pipeline("1f1b", kStages, words)), mesh.name() + ", " + how,
                     mesh.name().find("[1,1,2]") == std::string::npos ? 0.03 : kWithSums);
    }
  }
  for (const TensorCut& mesh :
       sweep.of(std::vector<TensorCut>{one_dimension(2, {}, kStages), grid(2, 2, 1, {}, kStages)}, 1)) {
    Words words = mesh.keys;
    words.insert(words.end(), {order + "algorithm_2", kLarge, "training.dtype=bfloat16"});
    expect_planned(wide_run().plan(mesh.ranks, pipeline("1f1b", kStages, words)), mesh.name() + ", bfloat16");
    words.back() = "model.final_logit_softcapping=30";
    words.emplace_back("training.label_smoothing=0.1");
    expect_planned(wide_run().plan(mesh.ranks, pipeline("1f1b", kStages, words)), mesh.name() + ", losses");
  }
}

// A rank's peak grows with the vocabulary by the weights, gradients and moments of its rows, and by one microbatch's
// exponentials.
TEST(PipelineMemory, GrowsByTheRowsOfARank) {
  constexpr int kRanks = 4;
  constexpr int64_t kWidth = 96, kTokens = 128, kLess = 4000, kMore = 16000, kRows = kMore - kLess;
  const auto most = [](const std::string& how, int64_t vocabulary) {
    const Words words = {"parallelism.vocabulary_parallel=" + how, fmt::format("model.vocab_size={}", vocabulary)};
    const Plan plan = wide_run().plan(kRanks, pipeline("1f1b", kRanks, words));
    std::vector<int64_t> peaks;
    for (const Held& held : measure(plan)) peaks.push_back(held.peak);
    return static_cast<double>(*std::ranges::max_element(peaks));
  };
  const double table = kRows * kWidth * 16, share = 2 * table / kRanks + kTokens * kRows / kRanks * 4;
  const double large = most("algorithm_2", kMore);
  EXPECT_NEAR(large - most("algorithm_2", kLess), share, 0.03 * large);
  EXPECT_GT(most("none", kMore) - most("none", kLess), table);  // the last rank also holds the logits
}

// Between I and W, a rank of a tensor mesh keeps its shards of the products' inputs. Sums over rows belong to W.
SWEEP_TEST(PipelineMemory, OfSplitBackwardOnTensorMeshes) {
  for (const TensorCut& cut :
       sweep.of(std::vector<TensorCut>{grid(1, 2, 1, {}, kStages), one_dimension(2, {}, kStages),
                                       one_dimension(2, {kNoSequence}, kStages), grid(2, 1, 1, {kSumma}, kStages),
                                       grid(2, 2, 1, {}, kStages)},
                2)) {
    for (const std::string schedule : sweep.of(std::vector{"zb_h1", "zb_h2", "v_min", "zb_v"}, 2)) {
      expect_planned(wide_run().plan(cut.ranks, pipeline(schedule, kStages, cut.keys)),
                     fmt::format("{}, {}", schedule, cut.name()));
    }
  }
}

// A small model: weights are most of the memory of a product, and the embedding's sum over rows exceeds that of a
// block.
TEST(PipelineMemory, OfSmallSplitBackwardOnTensorMeshes) {
  const TinyRun small({"model.num_hidden_layers=5", "model.hidden_size=32", "model.intermediate_size=64",
                       "model.vocab_size=512", "model.max_position_embeddings=64", "training.seq_len=64",
                       "training.dtype=float32", "training.global_batch_size=16", "training.local_batch_size=2"});
  const TensorCut cut = grid(2, 2, 1, {}, kStages);
  for (const char* schedule : {"zb_h1", "zb_h2"}) {
    expect_planned(small.plan(cut.ranks, pipeline(schedule, kStages, cut.keys)), schedule);
  }
}

}  // namespace
}  // namespace orthant::pipeline_memory_test
