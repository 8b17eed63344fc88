// What the plan says that a rank of a pipeline holds against what its tensors take, ranks being threads: the peak of a
// step in bytes, and the most microbatches between their F and their B or W.
#include <gtest/gtest.h>

#include "tests/support/thread_memory.h"
#include "tests/support/tiny_run.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

// Layers enough for eight stages, and tokens enough that activations are most of a rank's memory.
const TinyRun& wide_run() {
  static const TinyRun run({"model.num_hidden_layers=8", "model.hidden_size=96", "model.intermediate_size=256",
                            "model.num_attention_heads=4", "model.num_key_value_heads=2", "model.vocab_size=512",
                            "model.max_position_embeddings=64", "training.seq_len=64", "training.dtype=float32",
                            "training.global_batch_size=16", "training.local_batch_size=2"});
  return run;
}

Words pipeline(const std::string& schedule, int ranks, const Words& more = {}) {
  Words words = {fmt::format("parallelism.pipeline_parallel_degree={}", ranks),
                 "parallelism.pipeline_parallel_schedule=" + schedule};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Held {
  int64_t peak = 0;
  int live = 0;
};

// Of the second step, by rank: in the first, tiles and plans of products are made once.
std::vector<Held> measure(const Plan& plan) {
  ThreadMemory::install();
  std::vector<Held> ranks(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& meeting, int rank) {
    Comm comm(plan.mesh, rank, meeting, {.transport = plan.config.run.transport});
    Session session(plan, wide_run().data().train, comm);
    session.weights().initialize(1);
    for (const int64_t step : {1, 2}) {
      ThreadMemory::reset();
      session.update(step, session.gradients(step, {}));
    }
    ranks[static_cast<size_t>(rank)] = {ThreadMemory::peak(), session.peak_live()};
  });
  return ranks;
}

// What is still being sent, and when, is the other ranks' doing: a few messages more or less.
void expect_planned(const Plan& plan, const std::string& what, double bound = 0.03) {
  const std::vector<Held> held = measure(plan);
  for (size_t rank = 0; rank < held.size(); ++rank) {
    const auto planned = static_cast<double>(plan.memory[rank].total());
    EXPECT_NEAR(planned / static_cast<double>(held[rank].peak), 1, bound) << what << ", rank " << rank;
    const int live = plan.timeline.peak_live[static_cast<size_t>(plan.pipeline_rank(static_cast<int>(rank)))];
    EXPECT_EQ(held[rank].live, live) << what << ", rank " << rank;
  }
}

// What a pipeline adds nothing to: to the last scalar.
TEST(PipelineMemory, OfOneRankIsExact) {
  const std::string kFull = "activation_checkpoint.mode=full", kDropout = "model.dropout=0.1";
  for (const Words& words : {Words{}, Words{kFull}, Words{kDropout}, Words{"model.tie_word_embeddings=true"}}) {
    expect_planned(wide_run().plan(1, words), words.empty() ? "one rank" : words[0], 1e-4);
  }
}

TEST(PipelineMemory, IsAsPlanned) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min"}) {
    for (const int ranks : {2, 3, 4}) {
      expect_planned(wide_run().plan(ranks, pipeline(schedule, ranks)), fmt::format("{} on {}", schedule, ranks));
    }
  }
}

TEST(PipelineMemory, BesideTheRest) {
  struct Case {
    const char* name;
    int ranks;
    Words words;
  };
  const std::string p = "parallelism.";
  const std::string k2d = p + "tensor_parallel_kind=2d";
  const std::string kFull = "activation_checkpoint.mode=full", kHalf = "training.dtype=bfloat16";
  const std::string kTied = "model.tie_word_embeddings=true", kDropout = "model.dropout=0.1";
  for (const Case& c : std::vector<Case>{
           {"data", 4, pipeline("1f1b", 2, {p + "data_parallel_degree=2"})},
           {"data, zb_v", 4, pipeline("zb_v", 2, {p + "data_parallel_degree=2"})},
           {"ring", 4, pipeline("zb_h1", 2, {p + "context_parallel_ring=2"})},
           {"ulysses", 4, pipeline("v_half", 2, {p + "context_parallel_ulysses=2"})},
           {"recompute", 2, pipeline("1f1b", 2, {kFull})},
           {"recompute, split", 2, pipeline("zb_h1", 2, {kFull})},
           {"recompute, v_min", 2, pipeline("v_min", 2, {kFull})},
           {"bfloat16", 2, pipeline("1f1b", 2, {kHalf})},
           {"bfloat16, split", 2, pipeline("zb_h2", 2, {kHalf})},
           {"bfloat16, recompute", 2, pipeline("1f1b", 2, {kHalf, kFull})},
           {"tied", 2, pipeline("1f1b", 2, {kTied})},
           {"tied, zb_v", 2, pipeline("zb_v", 2, {kTied})},
           {"dropout", 2, pipeline("1f1b", 2, {kDropout})},
           {"dropout, split", 2, pipeline("zb_h1", 2, {kDropout})},
           {"uneven layers", 3, pipeline("1f1b", 3, {p + "pipeline_parallel_layers=5,1,2"})},
           {"uneven layers, split", 3, pipeline("zb_h1", 3, {p + "pipeline_parallel_layers=1,5,2"})},
           {"uneven batch", 2, pipeline("1f1b", 2, {"training.global_batch_size=13"})},
           {"tensor", 4, pipeline("1f1b", 2, {p + "tensor_parallel_degree=2"})},
           {"tensor [2,1,1]", 4, pipeline("1f1b", 2, {k2d, p + "tensor_parallel_mesh=[2,1,1]"})},
           {"tensor [1,2,1]", 4, pipeline("1f1b", 2, {k2d, p + "tensor_parallel_mesh=[1,2,1]"})},
       }) {
    expect_planned(wide_run().plan(c.ranks, c.words), c.name);
  }
}

}  // namespace
}  // namespace orthant
