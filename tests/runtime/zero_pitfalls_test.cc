// Mistakes that other implementations of sharded states have made, each with a test that sees it.
#include <gtest/gtest.h>

#include "parallel/data/zero.h"
#include "schedule/validate.h"
#include "tests/support/pipelines.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/sharded_runs.h"

namespace orthant::zero_pitfalls_test {
namespace {

const Words kStage2 = {"parallelism.zero_stage=2"}, kStep = {"parallelism.zero_stage=3"},
            kNever = {"parallelism.zero_stage=3", "parallelism.zero_reshard=never"},
            kMicrobatch = {"parallelism.zero_stage=3", "parallelism.zero_reshard=microbatch"};
const std::vector<Words> kSharded = {kStage2, kStep, kNever, kMicrobatch};

std::vector<Words> with_stage_1() {
  std::vector<Words> stages = kSharded;
  stages.push_back({"parallelism.zero_stage=1"});
  return stages;
}

// The largest difference of the runs' losses and norms, relative to the second run's; infinity if one is NaN.
double difference(const std::vector<RankTrace>& have, const std::vector<RankTrace>& want) {
  double most = 0;
  for (size_t rank = 0; rank < want.size(); ++rank) {
    for (size_t step = 0; step < want[rank].steps.size(); ++step) {
      const auto &a = have[rank].steps[step], &b = want[rank].steps[step];
      most = std::max({most, relative_error(a.loss, b.loss), relative_error(a.norm, b.norm)});
    }
  }
  return most;
}

void expect_stage_0(const TinyRun& run, int ranks, const Words& keys, const Words& stage) {
  const Plan plan = run.plan(ranks, with(keys, stage)), whole = run.plan(ranks, keys);
  const std::string what = fmt::format("{} {}", fmt::join(keys, " "), fmt::join(stage, " "));
  const auto have = train_ranks(plan, run.data(), {.steps = 5}), want = train_ranks(whole, run.data(), {.steps = 5});
  EXPECT_LT(difference(have, want), 1e-12) << what;
  EXPECT_EQ(first_difference_from_stage_0(plan, have, whole, want), "") << what;
  for (size_t rank = 0; rank < have.size(); ++rank) {
    EXPECT_EQ(have[rank].last().traffic, planned_traffic(plan, rank)) << rank;
  }
}

// The control of both comparisons: they report NaN in any result, also if the other run has NaN at the same place.
TEST(ZeroPitfalls, NaNIsADifference) {
  const TinyRun run({"training.dtype=float64"});
  const Plan plan = run.plan(1, kStage2);
  const double nan = std::nan("");
  const auto right = train_ranks(plan, run.data(), {.steps = 1});
  EXPECT_EQ(difference(right, right), 0);
  auto no_number = right;
  no_number[0].steps[0].norm = nan;
  EXPECT_FALSE(difference(no_number, right) < 1e-12);
  const auto differs = [&](const auto& spoil) {
    auto wrong = train_ranks(plan, run.data(), {.steps = 1});
    spoil(wrong[0].steps[0]);
    const auto found = [&](const auto& other) {
      return first_difference(plan, wrong, plan, other, float64_bounds(plan));
    };
    return !found(right).empty() && !found(wrong).empty();
  };
  EXPECT_FALSE(differs([](StepTrace&) {}));
  EXPECT_TRUE(differs([&](StepTrace& step) { step.loss = nan; }));
  EXPECT_TRUE(differs([&](StepTrace& step) { step.norm = nan; }));
  EXPECT_TRUE(differs([&](StepTrace& step) { step.gradients[0] = nan; }));
  EXPECT_TRUE(differs([&](StepTrace& step) { step.weights[0] = nan; }));
}

// A stage that reduces every microbatch must add up all of them. Ranks with fewer microbatches take part in every
// reduction.
TEST(ZeroPitfalls, AccumulatesEveryMicrobatch) {
  const TinyRun run({"training.dtype=float64"});
  for (const int microbatches : {1, 2, 8}) {
    for (const int more : {0, 1}) {  // sequences that the ranks do not divide evenly
      const Words keys = {fmt::format("training.global_batch_size={}", 2 * microbatches + more),
                          fmt::format("training.local_batch_size={}", 1)};
      for (const Words& stage : kSharded) expect_stage_0(run, 2, keys, stage);
    }
  }
}

// The control: without its last REDUCE, a bucket lacks the gradients of the last microbatch.
TEST(ZeroPitfalls, AnUnreducedGradientIsSeen) {
  const TinyRun run({"training.dtype=float64", "training.local_batch_size=1"});
  const Plan plan = run.plan(2, kStage2);
  const auto train = [&](bool drops) {
    run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous);
      SessionParts parts = session_parts(plan, comm);
      const auto reduces = [](const Action& action) { return action.kind == ActionKind::REDUCE; };
      const auto last = std::find_if(parts.row.rbegin(), parts.row.rend(), reduces);
      if (drops) parts.row.erase(std::next(last).base());
      Session session(plan, run.data().train, comm, std::move(parts));
      session.weights().initialize(1);
      session.gradients(1, {});
    });
  };
  EXPECT_NO_THROW(train(false));
  EXPECT_THROW(train(true), LogicError);
}

// A table that both ends of the model use, with rows that the ranks do not divide evenly: on one stage, on two
// stages, and on two stages of one rank.
TEST(ZeroPitfalls, TiedTablesOfUnevenSize) {
  const TinyRun run({"training.dtype=float64", "model.tie_word_embeddings=true", "model.hidden_size=24",
                     "training.local_batch_size=2"});
  const std::string three = "parallelism.data_parallel_degree=3";
  for (const Words& stage : with_stage_1()) {
    expect_stage_0(run, 3, {}, stage);
    expect_stage_0(run, 6, pipeline("1f1b", 2, {three}), stage);
    expect_stage_0(run, 6, pipeline("zb_v", 2, {three, "model.num_hidden_layers=4"}), stage);
  }
}

// Trains one step in which one rank loses its gradients of the weight. Expects that the comparison with stage 0 names
// the tensor.
void expect_named(const TinyRun& run, int ranks, const Words& keys, int on_rank, const std::string& weight,
                  const std::string& named) {
  const Plan whole = run.plan(ranks, keys);
  const auto want = train_ranks(whole, run.data(), {.steps = 1});
  for (const Words& stage : with_stage_1()) {
    const Plan plan = run.plan(ranks, with(keys, stage));
    const auto have = train_ranks(plan, run.data(), {.steps = 1, .prepare = losing_gradients(on_rank, weight)});
    const std::string found = first_difference_from_stage_0(plan, have, whole, want);
    EXPECT_TRUE(found.starts_with("the gradient of " + named))
        << fmt::format("{}, {}: {}", weight, fmt::join(stage, " "), found);
  }
}

// The control: one rank loses what its tokens add to the table, as the embedding and as the head of one stage, or as
// the head's copy of the table on another stage.
TEST(ZeroPitfalls, ALostGradientOfATiedTableIsSeen) {
  const TinyRun run({"training.dtype=float64", "model.tie_word_embeddings=true", "model.hidden_size=24",
                     "training.local_batch_size=2"});
  const std::string three = "parallelism.data_parallel_degree=3", table = "model.embed_tokens.weight";
  expect_named(run, 3, {}, 1, table, table);
  expect_named(run, 6, pipeline("zb_v", 2, {three, "model.num_hidden_layers=4"}), 1, table, table);
  const Words apart = pipeline("1f1b", 2, {three});
  const Mesh& mesh = run.plan(6, apart).mesh;
  expect_named(run, 6, apart, mesh.rank_at(mesh.rank_at(0, kPipeline, 1), kData, 1), "lm_head.weight", table);
}

const Words kTinyParameters = {"training.dtype=float64", "model.hidden_size=4", "model.head_dim=2",
                               "model.num_attention_heads=2", "model.num_key_value_heads=1",
                               "model.intermediate_size=3", "model.num_hidden_layers=3",
                               "training.global_batch_size=8"};
const Words kEmptyEnds = pipeline("1f1b", 3, {"parallelism.pipeline_parallel_layers=[0,3,0]",
                                              "parallelism.data_parallel_degree=2"}),
            kEmptyMiddle = pipeline("1f1b", 3, {"parallelism.pipeline_parallel_layers=[2,0,1]",
                                                "parallelism.data_parallel_degree=2"});

// Stages without a block, and parameters with fewer elements than ranks.
TEST(ZeroPitfalls, StagesWithoutBlocksAndTinyParameters) {
  const TinyRun run(kTinyParameters);
  for (const Words& stage : kSharded) {
    expect_stage_0(run, 8, {}, stage);
    expect_stage_0(run, 6, kEmptyEnds, stage);
    expect_stage_0(run, 6, kEmptyMiddle, stage);
  }
}

// The control: one rank loses its gradients of a parameter with fewer elements than ranks, those of a stage without
// blocks, or those that have passed a stage without parameters.
TEST(ZeroPitfalls, ALostGradientOfATinyParameterIsSeen) {
  const TinyRun run(kTinyParameters);
  const std::string gain = "model.layers.1.input_layernorm.weight", last_gain = "model.norm.weight",
                    table = "model.embed_tokens.weight";
  expect_named(run, 8, {}, 3, gain, gain);
  const Mesh& mesh = run.plan(6, kEmptyEnds).mesh;
  const auto rank_of_stage = [&](int stage) { return mesh.rank_at(mesh.rank_at(0, kPipeline, stage), kData, 1); };
  expect_named(run, 6, kEmptyEnds, rank_of_stage(0), table, table);
  expect_named(run, 6, kEmptyEnds, rank_of_stage(2), last_gain, last_gain);
  expect_named(run, 6, kEmptyMiddle, rank_of_stage(0), table, table);
}

// Recomputation repeats the forward of a block inside its backward, while the weights are there: it gathers nothing
// more.
TEST(ZeroPitfalls, RecomputationGathersNothingMore) {
  const TinyRun run({"training.dtype=float64"});
  for (const Words& stage : kSharded) {
    const Plan kept = run.plan(2, stage), recomputed = run.plan(2, with(stage, {"activation_checkpoint.mode=full"}));
    EXPECT_EQ(planned_traffic(recomputed, 0), planned_traffic(kept, 0));
    expect_stage_0(run, 2, {"activation_checkpoint.mode=full"}, stage);
  }
}

// The control: a row that gathers the weights of each backward again sends more than the plan.
TEST(ZeroPitfalls, AGatherForRecomputationIsSeen) {
  const TinyRun run({"training.dtype=float64"});
  for (const Words& stage : {kStep, kNever, kMicrobatch}) {
    Plan plan = run.plan(2, with(stage, {"activation_checkpoint.mode=full"}));
    std::vector<Action> row;
    for (const Action& action : plan.schedule.rows[0]) {
      if (action.kind == ActionKind::B) {
        row.push_back({ActionKind::RESHARD, action.stage});
        row.push_back({ActionKind::UNSHARD, action.stage});
      }
      row.push_back(action);
    }
    plan.schedule.rows[0] = row;
    const auto ranks = train_ranks(plan, run.data(), {.steps = 1});
    for (size_t rank = 0; rank < 2; ++rank) {
      const Traffic sent = ranks[rank].last().traffic, planned = planned_traffic(plan, rank);
      EXPECT_GT(sent.bytes.sent, planned.bytes.sent) << fmt::format("{}", fmt::join(stage, " "));
      EXPECT_GT(sent.calls, planned.calls) << fmt::format("{}", fmt::join(stage, " "));
    }
  }
}

// Copies of sharded states must have the sum of all gradients, with one rank in each copy, with one copy, on uneven
// sizes, and together with other kinds of parallelism. The control is the plan without the sums over copies, below.
TEST(ZeroPitfalls, CopiesOfShardedStates) {
  const std::string tied = "model.tie_word_embeddings=true", four = "parallelism.data_parallel_degree=4",
                    two = "parallelism.data_parallel_degree=2";
  const auto copies = [](int count) { return fmt::format("parallelism.data_parallel_replicate_degree={}", count); };
  const TinyRun run({"training.dtype=float64", "training.local_batch_size=1", "training.global_batch_size=9"});
  for (const Words& stage : with_stage_1()) {
    expect_stage_0(run, 4, {}, with(stage, {copies(2)}));
    expect_stage_0(run, 3, {}, with(stage, {copies(3), "parallelism.data_parallel_shard_degree=1"}));
    expect_stage_0(run, 2, {}, with(stage, {copies(1), "parallelism.data_parallel_shard_degree=2"}));
    expect_stage_0(run, 6, {tied}, with(stage, {copies(3)}));
    expect_stage_0(run, 8, pipeline("zb_v", 2, {four, tied, "model.num_hidden_layers=4"}), with(stage, {copies(2)}));
    expect_stage_0(run, 4, cut("algorithm_2", "1f1b", 2, {two}), with(stage, {copies(2)}));
    expect_stage_0(run, 8, one_dimension(2, {four}).keys, with(stage, {copies(2)}));
    expect_stage_0(run, 4, {kWithRing, two}, with(stage, {copies(2)}));
  }
  expect_stage_0(run, 4, {"optimizer.name=muon"}, with({"parallelism.zero_stage=1"}, {copies(2)}));
}

// The control: with another sum over copies missing, the copies train apart.
TEST(ZeroPitfalls, AMissingSumOverCopiesIsSeen) {
  const TinyRun run({"training.dtype=float64"});
  const Words two_copies = with(kStage2, {"parallelism.data_parallel_replicate_degree=2"});
  const auto unsharded = train_ranks(run.plan(2), run.data(), {.steps = 2});
  for (const bool sums : {true, false}) {
    Plan plan = run.plan(2, two_copies);
    if (!sums) std::ranges::find(plan.mesh.axes, kReplica, &Axis::name)->name = "unsummed";
    EXPECT_EQ(difference(train_ranks(plan, run.data(), {.steps = 2}), unsharded) < 1e-12, sums);
  }
}

// A gathered weight is that of this step: its memory does not exist between a RESHARD and the next UNSHARD, and the
// gather reads the weights after the update.
TEST(ZeroPitfalls, NoPassReadsStaleWeights) {
  const TinyRun run({"training.dtype=float32"});
  const Plan plan = run.plan(2, kMicrobatch);
  run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    Weights& weights = session.weights();
    weights.initialize(1);
    for (const int64_t step : {1, 2}) session.update(step, session.gradients(step, {}));
    for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      if (plan.buckets_of(rank)[bucket].elements.size() == 0) continue;
      EXPECT_FALSE(weights.segmented_values().is_allocated(bucket)) << bucket;
      EXPECT_FALSE(weights.segmented_gradients().is_allocated(bucket)) << bucket;
      session.sharded_states()->unshard(static_cast<int>(bucket));
      session.sharded_states()->wait_for(static_cast<int>(bucket));
    }
    for (size_t p = 0; p < weights.parameters().size(); ++p) {
      EXPECT_TRUE(weights.value(p).equal(session.master_shard(p))) << weights.parameters()[p].name;
    }
  });
}

// The control: a row that computes without its UNSHARD is not valid.
TEST(ZeroPitfalls, AMissingGatherIsSeen) {
  const TinyRun run({"training.dtype=float32"});
  const Plan plan = run.plan(2, kMicrobatch);
  const auto first_problem = [&](const Action& missing) {
    Schedule schedule = plan.schedule;
    schedule.rows[0].erase(std::ranges::find(schedule.rows[0], missing));
    const auto found = problems(schedule, microbatch_count(schedule), {}, {});
    return found.empty() ? "" : found.front();
  };
  EXPECT_NE(first_problem({ActionKind::UNSHARD, 1}).find("1F0"), std::string::npos);
  EXPECT_NE(first_problem({ActionKind::RESHARD, 1}).find("1UNSHARD"), std::string::npos);
}

// The same run has the same bits, although gathers and reductions run during the computation.
TEST(ZeroPitfalls, OverlapChangesNoBit) {
  const TinyRun run({"training.dtype=float32", "training.local_batch_size=1"});
  for (const Words& stage : kSharded) {
    const Plan plan = run.plan(4, stage);
    const auto once = train_ranks(plan, run.data(), {.steps = 4}), again = train_ranks(plan, run.data(), {.steps = 4});
    EXPECT_EQ(difference(once, again), 0);
    for (size_t rank = 0; rank < once.size(); ++rank) EXPECT_TRUE(once[rank].values.equal(again[rank].values)) << rank;
  }
}

}  // namespace
}  // namespace orthant::zero_pitfalls_test
