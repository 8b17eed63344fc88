// Whole runs with sequences cut over ranks: every number is that of one rank, and the plan's bytes are what is sent.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "runtime/verify.h"
#include "tests/support/says.h"
#include "tests/support/tiny_run.h"

namespace orthant {
namespace {

struct Cut {
  int ulysses, ring, data;
  std::vector<std::string> more = {};

  int ranks() const { return ulysses * ring * data; }
  std::vector<std::string> overrides() const {
    std::vector<std::string> all = {fmt::format("parallelism.context_parallel_ulysses={}", ulysses),
                                    fmt::format("parallelism.context_parallel_ring={}", ring)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string name() const {
    std::string text = fmt::format("ulysses {}, ring {}, data {}", ulysses, ring, data);
    for (const auto& word : more) text += ", " + word;
    return text;
  }
};

const std::string kTwoRings = "parallelism.context_parallel_attention=ring_self_attention";

std::vector<Cut> cuts() {
  return {{2, 1, 1}, {1, 2, 1}, {2, 2, 1}, {4, 1, 1}, {1, 4, 1}, {1, 3, 1}, {3, 1, 1}, {2, 2, 2}, {1, 2, 2}, {2, 1, 3},
          {1, 2, 1, {"parallelism.context_parallel_placement=contiguous"}},
          {2, 3, 1, {"parallelism.context_parallel_placement=stripe"}},
          {1, 4, 1, {"parallelism.context_parallel_window=2"}},
          {1, 2, 1, {"activation_checkpoint.mode=full"}},
          {2, 2, 1, {"model.dropout=0.2"}},
          {1, 2, 2, {kTwoRings}},
          {2, 2, 1, {kTwoRings, "parallelism.context_parallel_reduction=all_reduce"}}};
}

// `keys`: changes to both runs.
void expect_one_ranks_numbers(const TinyRun& run, const Cut& cut, const std::vector<std::string>& keys = {}) {
  std::vector<std::string> shared = keys;
  for (const std::string& word : cut.more) {
    if (word.rfind("model.", 0) == 0) shared.push_back(word);
  }
  std::vector<std::string> changed = cut.overrides();
  changed.insert(changed.end(), keys.begin(), keys.end());
  const Plan alone = run.plan(1, shared), plan = run.plan(cut.ranks(), changed);
  const auto want = train_ranks(alone, run.data())[0];
  for (const RankTrace& have : train_ranks(plan, run.data())) {
    for (size_t step = 0; step < want.steps.size(); ++step) {
      EXPECT_LT(relative_error(have.steps[step].loss, want.steps[step].loss), 1e-10) << cut.name();
      EXPECT_LT(worst_parameter(plan, have.steps[step].gradients, want.steps[step].gradients).error, 1e-10) << cut.name();
      EXPECT_LT(worst_parameter(plan, have.steps[step].weights, want.steps[step].weights).error, 1e-10) << cut.name();
    }
  }
}

TEST(SequenceRuns, HaveOneRanksNumbers) {
  const TinyRun run;
  for (const Cut& cut : cuts()) expect_one_ranks_numbers(run, cut);
}

TEST(SequenceRuns, WithDocumentsAndWindows) {
  const TinyRun run({"data.mask_documents=true"});
  for (const Cut& cut : {Cut{2, 2, 1}, Cut{1, 3, 1}, Cut{1, 2, 1, {kTwoRings}}}) {
    expect_one_ranks_numbers(run, cut);
    expect_one_ranks_numbers(run, cut, {"model.sliding_window=5"});
  }
}

TEST(SequenceRuns, SendWhatThePlanSays) {
  const TinyRun run;
  for (const Cut& cut : cuts()) {
    const Plan plan = run.plan(cut.ranks(), cut.overrides());
    const auto ranks = train_ranks(plan, run.data(), {.steps = 1});
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      int64_t planned = 0;
      for (const auto& entry : plan.communication) planned += entry.bytes_per_rank[rank];
      EXPECT_EQ(ranks[rank].last().traffic.bytes, planned) << cut.name() << ", rank " << rank;
    }
  }
}

TEST(SequenceRuns, GoOnAtAnotherCut) {
  const TinyRun run;
  const auto whole = train_ranks(run.plan(1), run.data(), {.steps = 6})[0];
  const Cut first{2, 2, 1}, second{1, 2, 2};
  train_ranks(run.plan(4, first.overrides()), run.data(), {.steps = 3, .save = true});
  const Plan plan = run.plan(4, second.overrides());
  const auto resumed = train_ranks(plan, run.data(), {.steps = 6, .resume_from = run.folder() + "/out/checkpoints/step-000003"});
  EXPECT_LT(worst_parameter(plan, resumed[0].last().weights, whole.last().weights).error, 1e-10);
}

TEST(SequenceRuns, VerifyAcceptsWhatIsRightAndSeesAMean) {
  const TinyRun run;
  for (const Cut& cut : {Cut{2, 2, 1}, Cut{1, 2, 2, {kTwoRings}}}) {
    const Plan plan = run.plan(cut.ranks(), cut.overrides());
    EXPECT_TRUE(verify_layout(plan, run.data(), 2).ok) << cut.name();
    EXPECT_FALSE(verify_layout(plan, run.data(), 2, Mutation::stray_mean).ok) << cut.name();
    EXPECT_FALSE(verify_layout(plan, run.data(), 2, Mutation::dropped_reduction).ok) << cut.name();
  }
}

TEST(SequenceRuns, AreRefusedWithTheNearestLegalCut) {
  const TinyRun run;
  const auto refusal = [&](int ranks, const std::vector<std::string>& keys) {
    try {
      run.plan(ranks, keys);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_TRUE(says(refusal(8, {"parallelism.context_parallel_ulysses=8"}),
                   {"context_parallel_ulysses = 8", "num_attention_heads = 4", "set it to 4 or less"}));
  EXPECT_TRUE(says(refusal(16, {"parallelism.context_parallel_ring=16"}), {"training.seq_len = 16", "make it at least 32"}));
  EXPECT_TRUE(says(refusal(4, {"parallelism.context_parallel_ring=4", "parallelism.context_parallel_window=3"}),
                   {"context_parallel_window = 3", "does not divide", "try 2 or 4"}));
  EXPECT_TRUE(says(refusal(6, {"parallelism.context_parallel_ring=4"}), {"does not fit 6 ranks", "multiple of 4"}));
  EXPECT_EQ(refusal(6, {"parallelism.context_parallel_ring=-1", "parallelism.data_parallel_degree=2"}), "accepted");
}

}  // namespace
}  // namespace orthant
