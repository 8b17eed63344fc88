// Pipelines that shard the vocabulary over their ranks equal the run of one rank: numbers within 1e-10 and the planned
// bytes.
#include <gtest/gtest.h>

#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"

namespace orthant::vocabulary_test {
namespace {

const std::string kTied = "model.tie_word_embeddings=true", p = "parallelism.";

// A vocabulary size that no number of ranks divides.
const TinyRun& deep_run() {
  static const TinyRun run([] {
    Words words = kDeep;
    words.push_back("model.vocab_size=1003");
    return words;
  }());
  return run;
}

void expect_equal_to_one(const TinyRun& run, int ranks, const Words& words) {
  Words model;
  std::string what = fmt::format("{} ranks", ranks);
  for (const std::string& word : words) {
    if (!word.starts_with(p)) model.push_back(word);
    what += ", " + word.substr(word.find('.') + 1);
  }
  const auto one = train_ranks(run.plan(1, model), run.data());
  const Plan plan = run.plan(ranks, words);
  expect_equal(plan, train_ranks(plan, run.data()), one[0], what);
}

SWEEP_TEST(Vocabulary, EqualsOneRank) {
  const auto one = train_ranks(deep_run().plan(1), deep_run().data());
  for (const std::string& schedule : sweep.of(kEverySchedule, 3)) {
    for (const std::string& order : kOrders) {
      for (const int ranks : {2, 4}) {
        const Plan plan = deep_run().plan(ranks, cut(order, schedule, ranks));
        expect_equal(plan, train_ranks(plan, deep_run().data()), one[0],
                     fmt::format("{}, {} on {}", order, schedule, ranks));
      }
    }
  }
}

TEST(Vocabulary, Tied) {
  for (const std::string& order : kOrders) {
    for (const char* schedule : {"1f1b", "zb_h2", "v_half", "interleaved_1f1b"}) {
      expect_equal_to_one(deep_run(), 4, cut(order, schedule, 4, {kTied}));
    }
  }
}

TEST(Vocabulary, ComposesWithTheRest) {
  const std::string data = p + "data_parallel_degree=", ring = p + "context_parallel_ring=2";
  const std::string ulysses = p + "context_parallel_ulysses=2", kFull = "activation_checkpoint.mode=full";
  struct Case {
    int ranks;
    Words words;
  };
  for (const Case& c : std::vector<Case>{
           {4, cut("algorithm_2", "1f1b", 2, {data + "2"})},
           {6, cut("algorithm_1", "zb_v", 2, {data + "3", kTied})},
           {6, cut("algorithm_2", "zb_h1", 3, {data + "2", "training.global_batch_size=5"})},  // some ranks are idle
           {4, cut("naive", "zb_h1", 2, {ring})},
           {8, cut("algorithm_2", "v_half", 2, {ring, ulysses})},
           {4, cut("algorithm_1", "interleaved_1f1b", 2, {data + "2", kFull})},
           {3, cut("algorithm_2", "1f1b", 3, {p + "pipeline_parallel_layers=5,0,3", "model.dropout=0.2", kTied})},
           {2, cut("algorithm_2", "interleaved_1f1b", 2, {p + "pipeline_parallel_stages_per_rank=3", kFull})},
           {4, cut("algorithm_1", "v_min", 4, {"training.max_norm=0.05", "model.dropout=0.1"})},
           {5, cut("algorithm_2", "gpipe", 5, {p + "bucket_mib=0.001"})},
           {2, cut("algorithm_2", "1f1b", 2, {"training.local_batch_size=3", p + "pipeline_parallel_layers=-1"})}}) {
    expect_equal_to_one(deep_run(), c.ranks, c.words);
  }
}

// With the masked objective, the labels of all tokens that are not masked are ignored.
TEST(Vocabulary, IgnoresLabels) {
  const TinyRun run({"model.num_hidden_layers=4", "model.objective=masked", "training.local_batch_size=1"});
  for (const std::string& order : kOrders) expect_equal_to_one(run, 4, cut(order, "1f1b", 4));
}

TEST(Vocabulary, OtherWaysToBalance) {
  for (const int ranks : {2, 4}) {
    expect_equal_to_one(deep_run(), ranks, cut("interlaced", "1f1b", ranks, {kTied}));
    expect_equal_to_one(deep_run(), ranks, cut("redistribution", "1f1b", ranks));
  }
  const Plan plan = deep_run().plan(4, cut("redistribution", "1f1b", 4));
  EXPECT_LT(plan.stages.back().layers.size(), plan.stages.front().layers.size());
}

TEST(Vocabulary, RunsAScheduleOfAFile) {
  const TempFolder folder;
  const std::string file = folder.write("own.csv",
                                        "0F0,0F1,0F2,0F3,0F4,0F5,0F6,0I0,0I1,0W0,0B2,0W1,0B3,0B4,0B5,0B6\n"
                                        "1F0,1F1,1B1,1I0,1F2,1B2,1F3,1B3,1F4,1B4,1F5,1F6,1B6,1B5,1W0\n");
  expect_equal_to_one(deep_run(), 2, cut("algorithm_2", file, 2));
}

// The rows of a tied table accumulate two gradients per microbatch, as head and as embedding. The schedule decides
// their order, which moves only the last digits of the sums. Untied weights keep every bit:
// PipelineStep.FiveStepsOfEverySchedule.
SWEEP_TEST(Vocabulary, OfATiedTableSchedulesMoveLastDigitsOnly) {
  std::vector<StepTrace> first;
  for (const std::string& schedule : sweep.of(kEverySchedule, 3)) {
    const Plan plan = deep_run().plan(4, cut("algorithm_2", schedule, 4, {kTied}));
    const StepTrace whole = put_together(plan, train_ranks(plan, deep_run().data(), {.steps = 1}), 0);
    if (first.empty()) first.push_back(whole);
    EXPECT_EQ(whole.loss, first[0].loss) << schedule;
    EXPECT_LT(relative_error(whole.gradients, first[0].gradients), 1e-14) << schedule;
  }
}

}  // namespace
}  // namespace orthant::vocabulary_test
