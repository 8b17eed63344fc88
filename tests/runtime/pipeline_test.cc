// Pipelines against the run of one rank: numbers, what is sent, and that no schedule changes a bit.
#include <gtest/gtest.h>

#include "tests/support/tiny_run.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

const TinyRun& deep_run() {
  static const TinyRun run({"model.num_hidden_layers=8", "training.local_batch_size=1"});
  return run;
}

Words pipeline(const std::string& schedule, int ranks, const Words& more = {}) {
  Words words = {fmt::format("parallelism.pipeline_parallel_degree={}", ranks),
                 "parallelism.pipeline_parallel_schedule=" + schedule};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Whole gradient and weights, from the ranks that hold them; each stands in some rank's buffer.
void expect_equal(const Plan& plan, const std::vector<RankTrace>& ranks, const RankTrace& one,
                  const std::string& what) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t step = 0; step < one.steps.size(); ++step) {
      const StepTrace &have = ranks[rank].steps[step], &want = one.steps[step];
      EXPECT_LT(std::abs(have.loss - want.loss), 1e-10 * want.loss) << what;
      EXPECT_LT(std::abs(have.norm - want.norm), 1e-10 * want.norm) << what;
      for (const auto& [of, other] : {std::pair{have.gradients, want.gradients}, {have.weights, want.weights}}) {
        const NamedError worst = worst_parameter(plan, of, other, static_cast<int>(rank));
        EXPECT_LT(worst.error, 1e-10) << what << ": " << worst.name << " on rank " << rank << ", step " << step + 1;
      }
    }
    EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank)) << what << ": rank " << rank;
  }
}

TEST(Pipeline, EqualsOneRank) {
  const auto one = train_ranks(deep_run().plan(1), deep_run().data());
  for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min"}) {
    for (const int ranks : {2, 3, 4}) {
      const Plan plan = deep_run().plan(ranks, pipeline(schedule, ranks));
      expect_equal(plan, train_ranks(plan, deep_run().data()), one[0], fmt::format("{} on {}", schedule, ranks));
    }
  }
}

// Forward and backward of a microbatch are the same wherever they stand, and each weight adds up microbatches in their
// order: nothing that a schedule chooses is in the sums.
TEST(Pipeline, NoScheduleChangesABit) {
  for (const Words& more : {Words{}, Words{"model.tie_word_embeddings=true", "model.dropout=0.1"}}) {
    std::vector<StepTrace> first;
    for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min"}) {
      for (const int ranks : {2, 4}) {
        const Plan plan = deep_run().plan(ranks, pipeline(schedule, ranks, more));
        const auto traces = train_ranks(plan, deep_run().data(), {.steps = 2});
        std::vector<StepTrace> steps;
        for (size_t step = 0; step < 2; ++step) {
          // Every parameter from the rank that holds it, in the model's order.
          StepTrace whole{.loss = traces[0].steps[step].loss, .norm = traces[0].steps[step].norm};
          std::vector<at::Tensor> gradients, weights;
          for (size_t p = 0; p < parameter_table(plan.architecture).size(); ++p) {
            for (int rank = 0; rank < ranks; ++rank) {
              const auto held = plan.parameters_of(rank);
              if (held[p].held_size() == 0) continue;
              const int64_t offset = flat_layout(held).parameter_offsets[p];
              const StepTrace& trace = traces[static_cast<size_t>(rank)].steps[step];
              gradients.push_back(trace.gradients.narrow(0, offset, held[p].held_size()));
              weights.push_back(trace.weights.narrow(0, offset, held[p].held_size()));
            }
          }
          whole.gradients = at::cat(gradients), whole.weights = at::cat(weights);
          steps.push_back(whole);
        }
        if (first.empty()) first = steps;
        for (size_t step = 0; step < 2; ++step) {
          const std::string what = fmt::format("{} on {}, step {}", schedule, ranks, step + 1);
          EXPECT_EQ(steps[step].loss, first[step].loss) << what;
          EXPECT_EQ(steps[step].norm, first[step].norm) << what;
          EXPECT_TRUE(steps[step].gradients.equal(first[step].gradients)) << what;
          EXPECT_TRUE(steps[step].weights.equal(first[step].weights)) << what;
        }
      }
    }
  }
}

TEST(Pipeline, ComposesWithTheRest) {
  struct Case {
    int ranks;
    Words words;
  };
  const std::string p = "parallelism.";
  for (const Case& c : std::vector<Case>{
           {4, pipeline("1f1b", 2, {p + "data_parallel_degree=2"})},
           {6, pipeline("zb_v", 2, {p + "data_parallel_degree=3"})},
           {4, pipeline("zb_h1", 2, {p + "context_parallel_ring=2"})},
           {8, pipeline("v_half", 2, {p + "context_parallel_ring=2", p + "context_parallel_ulysses=2"})},
           {4, pipeline("interleaved_1f1b", 2, {p + "data_parallel_degree=2", "activation_checkpoint.mode=full"})},
           {2, pipeline("zb_h2", 2, {"activation_checkpoint.mode=full", "model.tie_word_embeddings=true"})},
           {3, pipeline("1f1b", 3, {p + "pipeline_parallel_layers=5,0,3", "model.tie_word_embeddings=true"})},
           {4, pipeline("v_min", 4, {"model.tie_word_embeddings=true", "model.dropout=0.2"})}}) {
    Words model;
    for (const std::string& word : c.words) {
      if (word.starts_with("model.")) model.push_back(word);
    }
    const auto one = train_ranks(deep_run().plan(1, model), deep_run().data());
    const Plan plan = deep_run().plan(c.ranks, c.words);
    expect_equal(plan, train_ranks(plan, deep_run().data()), one[0], plan.mesh_text());
  }
}

}  // namespace
}  // namespace orthant
