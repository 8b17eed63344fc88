// Pipelines equal the run of one rank: numbers within 1e-10 and the planned bytes. No schedule changes a bit.
#include <gtest/gtest.h>

#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"

namespace orthant::pipeline_test {
namespace {

const TinyRun& deep_run() {
  static const TinyRun run(kDeep);
  return run;
}

SWEEP_TEST(Pipeline, EqualsOneRank) {
  const auto one = train_ranks(deep_run().plan(1), deep_run().data());
  for (const std::string& schedule : sweep.of(kEverySchedule, 3)) {
    for (const int ranks : {2, 3, 4}) {
      const Plan plan = deep_run().plan(ranks, pipeline(schedule, ranks));
      expect_equal(plan, train_ranks(plan, deep_run().data()), one[0], fmt::format("{} on {}", schedule, ranks));
    }
  }
}

// Forward and backward of a microbatch do not depend on the schedule, and each weight accumulates the microbatches in
// their order. No sum therefore depends on the schedule.
SWEEP_TEST(Pipeline, NoScheduleChangesABit) {
  for (const Words& more : {Words{}, Words{"model.tie_word_embeddings=true", "model.dropout=0.1"}}) {
    std::vector<StepTrace> first;
    for (const std::string& schedule : sweep.of(kEverySchedule, 3)) {
      for (const int ranks : {2, 4}) {
        const Plan plan = deep_run().plan(ranks, pipeline(schedule, ranks, more));
        const auto traces = train_ranks(plan, deep_run().data(), {.steps = 2});
        for (size_t step = 0; step < 2; ++step) {
          const StepTrace whole = put_together(plan, traces, step);
          if (first.size() == step) first.push_back(whole);
          expect_same_bits(whole, first[step], fmt::format("{} on {}, step {}", schedule, ranks, step + 1));
        }
      }
    }
  }
}

// Seven microbatches on two ranks, with backwards in an unusual order. Some of them are split.
TEST(Pipeline, RunsAScheduleOfAFile) {
  const TempFolder folder;
  const std::string file = folder.write("own.csv",
                                        "0F0,0F1,0F2,0F3,0F4,0F5,0F6,0I1,0I0,0W0,0B2,0W1,0B3,0B4,0B6,0B5\n"
                                        "1F0,1F1,1B1,1I0,1F2,1B2,1F3,1B3,1F4,1B4,1F5,1F6,1B6,1B5,1W0\n");
  const auto one = train_ranks(deep_run().plan(1), deep_run().data());
  const Plan plan = deep_run().plan(2, pipeline(file, 2));
  expect_equal(plan, train_ranks(plan, deep_run().data()), one[0], "a file");
}

// With three layers on four ranks, the last stages have no layers. They pass their input on, also with data ranks, with
// sharded states, and with a vocabulary on all ranks. By hand, stages in the middle and at both ends may be empty too.
SWEEP_TEST(Pipeline, StagesWithoutLayersEqualOneRank) {
  const std::string p = "parallelism.";
  struct Case {
    int ranks;
    Words words;
  };
  std::vector<Case> cases;
  for (const std::string& schedule : kEverySchedule) cases.push_back({4, pipeline(schedule, 4)});
  cases.push_back(
      {4, pipeline("interleaved_1f1b", 2, {p + "pipeline_parallel_stages_per_rank=3", p + "zero_stage=1"})});
  cases.push_back({8, pipeline("zb_v", 4, {p + "zero_stage=3"})});
  cases.push_back({4, pipeline("1f1b", 4, {p + "pipeline_parallel_layers=0,2,1,0", p + "zero_stage=2"})});
  cases.push_back({5, pipeline("zb_h1", 5, {p + "pipeline_parallel_layers=0,1,0,2,0"})});
  for (const char* order : {"naive", "algorithm_1", "algorithm_2"}) cases.push_back({4, cut(order, "v_half", 4)});
  cases.push_back({6, cut("interlaced", "1f1b", 6)});
  cases.push_back({6, cut("redistribution", "zb_h2", 6)});
  const Words shallow = {"model.num_hidden_layers=3"};
  const auto one = train_ranks(deep_run().plan(1, shallow), deep_run().data());
  for (const Case& c : sweep.of(cases, 6)) {
    Words words = c.words;
    words.push_back(shallow[0]);
    const Plan plan = deep_run().plan(c.ranks, words);
    expect_equal(plan, train_ranks(plan, deep_run().data()), one[0], plan.mesh_text() + ", " + c.words[1]);
  }
}

SWEEP_TEST(Pipeline, ComposesWithTheRest) {
  struct Case {
    int ranks;
    Words words;
  };
  const std::string p = "parallelism.";
  const std::vector<Case> cases = {
      {4, pipeline("1f1b", 2, {p + "data_parallel_degree=2"})},
      {6, pipeline("zb_v", 2, {p + "data_parallel_degree=3"})},
      {4, pipeline("zb_h1", 2, {p + "context_parallel_ring=2"})},
      {8, pipeline("v_half", 2, {p + "context_parallel_ring=2", p + "context_parallel_ulysses=2"})},
      {4, pipeline("interleaved_1f1b", 2, {p + "data_parallel_degree=2", "activation_checkpoint.mode=full"})},
      {2, pipeline("zb_h2", 2, {"activation_checkpoint.mode=full", "model.tie_word_embeddings=true"})},
      {3, pipeline("1f1b", 3, {p + "pipeline_parallel_layers=5,0,3", "model.tie_word_embeddings=true"})},
      {4, pipeline("v_min", 4, {"model.tie_word_embeddings=true", "model.dropout=0.2"})},
      {2, pipeline("interleaved_1f1b", 2, {p + "pipeline_parallel_stages_per_rank=3"})},
      {4, pipeline("interleaved_1f1b", 2, {p + "pipeline_parallel_stages_per_rank=4", p + "data_parallel_degree=2"})},
      // A norm limit so low that gradients are clipped, by the norm over all stages.
      {4, pipeline("zb_v", 4, {"training.max_norm=0.05"})},
      {6, pipeline("dual_pipe_v", 2, {p + "data_parallel_degree=3", "training.max_norm=0.05"})}};
  for (const Case& c : sweep.of(cases, 5)) {
    Words model;
    for (const std::string& word : c.words) {
      if (word.starts_with("model.") || word.starts_with("training.")) model.push_back(word);
    }
    const auto one = train_ranks(deep_run().plan(1, model), deep_run().data());
    const Plan plan = deep_run().plan(c.ranks, c.words);
    expect_equal(plan, train_ranks(plan, deep_run().data()), one[0], plan.mesh_text());
  }
}

}  // namespace
}  // namespace orthant::pipeline_test
