// A run with sharded states (ZeRO) has the bits of the same run without: losses, norms, gradients, weights and every
// byte of a checkpoint, if it reduces gradients once a step. If it reduces those of each microbatch, the sums have
// another order, and differ by rounding. Every run sends the planned bytes. The controls keep the state of another
// rank's chunks, or drop the gradients of a microbatch.
#include <gtest/gtest.h>

#include "tests/support/sweep.h"
#include "tests/support/zero_runs.h"

namespace orthant::zero_test {
namespace {

SWEEP_TEST(Zero, StageOneHasTheBitsOfStageZero) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype), "training.max_norm=1"});
    for (const auto& [name, ranks, keys] : sweep.of(layouts(), 9)) {
      const std::string what = fmt::format("{}, {}", name, dtype);
      const Plan unsharded = run.plan(ranks, keys), sharded = run.plan(ranks, with(keys, {kStage1}));
      const Trained want = trained(unsharded, run, {.steps = 3}), have = trained(sharded, run, {.steps = 3});
      expect_same_bits(have, want, what);
      for (size_t rank = 0; rank < have.ranks.size(); ++rank) {
        EXPECT_EQ(have.ranks[rank].last().traffic, planned_traffic(sharded, rank)) << what << ", rank " << rank;
      }
    }
  }
}

// With one microbatch the gradients are reduced once.
SWEEP_TEST(Zero, StagesTwoAndThreeHaveTheBitsOfStageZero) {
  const std::string one_microbatch = "training.local_batch_size=1024";
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype), "training.max_norm=1"});
    for (const auto& [name, ranks, keys] : sweep.of(layouts(), 5)) {
      for (const auto& [stage, settings] : kStages) {
        const std::string what = fmt::format("{}, {}, {}", name, stage, dtype);
        SCOPED_TRACE(what);
        const bool once = stage == "stage 3, step";
        const Words base = once ? keys : with(keys, {one_microbatch});
        const Plan sharded = run.plan(ranks, with(base, settings));
        const Trained want = trained(run.plan(ranks, base), run, {.steps = 3}),
                      have = trained(sharded, run, {.steps = 3});
        expect_same_bits(have, want, what);
        expect_planned_traffic(have, sharded, what);
      }
    }
  }
}

// Several gradients are not finite: every stage names the one that backward makes first, although its elements are on
// another rank than those of the others. Control: with an order by stages alone, stages 1 to 3 name another one.
TEST(Zero, NamesTheSameTensorThatIsNotFinite) {
  const TinyRun run({"training.local_batch_size=7"});
  const std::string first = "model.layers.1.mlp.down_proj.weight";
  const Words not_finite = {first, "model.layers.1.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight"};
  for (const int stage : {0, 1, 2, 3}) {
    const Plan plan = run.plan(3, {fmt::format("parallelism.zero_stage={}", stage)});
    Words named(3);
    run_ranks(3, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous);
      Session session(plan, run.data().train, comm);
      session.weights().initialize(1);
      session.weights().on_gradient = [&, count = session.weights().on_gradient](const Weight& weight) {
        for (const std::string& name : not_finite) {
          if (&weight == &session.weights()[name]) weight.gradient.fill_(std::nan(""));
        }
        count(weight);
      };
      session.gradients(1, {});
      const Session::NotFinite found = session.find_first_not_finite(1);
      if (found.first) named[static_cast<size_t>(rank)] = found.what;
    });
    EXPECT_EQ(named[0] + named[1] + named[2], "the gradient of " + first) << stage;
  }
}

TEST(Zero, OptimizersAndUnevenSizes) {
  const Words odd = {"model.hidden_size=20", "model.intermediate_size=33", "model.head_dim=6"};
  for (const Words& keys : {odd, Words{"optimizer.name=sgd"}, Words{"optimizer.name=sgd", "optimizer.momentum=0"},
                            Words{"training.dtype=float64", "model.dropout=0.1"}, Words{"optimizer.name=muon"},
                            Words{"optimizer.name=muon", "training.dtype=bfloat16"}}) {
    const TinyRun run(with({"training.dtype=float32"}, keys));
    const Trained want = trained(run.plan(3, {kSmallBuckets}), run, {.steps = 4});
    expect_same_bits(trained(run.plan(3, {kSmallBuckets, kStage1}), run, {.steps = 4}), want, keys.front());
  }
}

// Ranks of a tensor mesh exchange the matrices that Muon updates. With ZeRO they own the same ones, also if their
// shards have different sizes. Updates in backward exchange those of one bucket.
SWEEP_TEST(Zero, MuonOnTensorMeshesHasTheBitsOfStageZero) {
  const TinyRun run({"training.dtype=float32", "optimizer.name=muon", "training.max_norm=0", "model.hidden_size=20",
                     "model.intermediate_size=33", "model.head_dim=6", "training.local_batch_size=8",
                     "training.global_batch_size=8"});
  const std::string two = "parallelism.data_parallel_degree=2";
  const std::vector<TensorCut> cuts = {one_dimension(2, {two, "model.attention_bias=true"}, 2),
                                       grid(2, 2, 1, {two, kSmallBuckets}, 2), grid(2, 1, 2), grid(2, 2, 2)};
  for (const TensorCut& cut : sweep.of(cuts, 2)) {
    const Trained want = trained(run.plan(cut.ranks, cut.keys), run, {.steps = 3});
    std::vector<std::pair<std::string, Words>> stages = kStages;
    stages.push_back({"stage 1", {kStage1}});
    for (const bool in_backward : {false, true}) {
      for (const auto& [stage, settings] : stages) {
        const std::string what = fmt::format("{}, {}{}", cut.name(), stage, in_backward ? ", in backward" : "");
        const Words updates = {fmt::format("optimizer.in_backward={}", in_backward)};
        const Plan plan = run.plan(cut.ranks, with(with(cut.keys, settings), updates));
        const Trained have = trained(plan, run, {.steps = 3});
        expect_same_bits(have, want, what);
        expect_planned_traffic(have, plan, what);
      }
    }
  }
}

// Each rank keeps state for its own chunks only, and all ranks together keep it once.
TEST(Zero, TheStateOfAllRanksTogetherIsThatOfOne) {
  const TinyRun run({"training.dtype=float32"});
  const Plan one = run.plan(1), four = run.plan(4, {kStage1});
  const auto unsharded = train_ranks(one, run.data(), {.steps = 1}),
             ranks = train_ranks(four, run.data(), {.steps = 1});
  int64_t elements = 0;
  for (const RankTrace& rank : ranks) {
    elements += rank.optimizer_state[0].numel();
    EXPECT_LT(rank.optimizer_state[0].numel(), unsharded[0].optimizer_state[0].numel() / 4 + 256);
    EXPECT_EQ(rank.optimizer_state[0].numel() * 8, four.memory_of(static_cast<int>(&rank - ranks.data())).optimizer);
  }
  EXPECT_EQ(elements, unsharded[0].optimizer_state[0].numel());
}

// With Muon one rank owns all of a matrix. No rank has more elements than its part and the largest matrix, and its
// state has the planned bytes: a momentum for each matrix, two moments for the rest.
TEST(Zero, MuonKeepsMatricesWhole) {
  const TinyRun run({"training.dtype=float32", "optimizer.name=muon"});
  const Plan plan = run.plan(3, {kStage1, kSmallBuckets});
  const auto ranks = train_ranks(plan, run.data(), {.steps = 1});
  int64_t planned = 0, most = 0, total = 0, largest = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const auto at = static_cast<size_t>(rank);
    int64_t state = 0, elements = 0;
    for (const at::Tensor& buffer : ranks[at].optimizer_state) state += static_cast<int64_t>(buffer.nbytes());
    EXPECT_EQ(plan.memory_of(rank).optimizer, state) << rank;
    planned += state;
    const std::vector<Range> owned = plan.owned_parts(rank);
    for (size_t p = 0; p < owned.size(); ++p) {
      const ParameterInfo& parameter = plan.parameters[p];
      const bool is_cut = owned[p].size() > 0 && owned[p].size() < parameter.size();
      EXPECT_FALSE(is_hidden_matrix(parameter) && is_cut) << parameter.name;
      elements += owned[p].size();
      if (is_hidden_matrix(parameter)) largest = std::max(largest, parameter.size());
    }
    total += elements;
    most = std::max(most, elements);
  }
  EXPECT_LE(most, total / 3 + largest);
  int64_t bytes = 0;
  for (const ParameterInfo& parameter : plan.parameters) {
    bytes += parameter.size() * (is_hidden_matrix(parameter) ? 4 : 8);
  }
  EXPECT_EQ(planned, bytes);
}

// The table of a tied model may end between the blocks of a chunk, and then has a gap behind it on one stage only. Both
// stages must divide it alike, with both on different ranks and on one.
TEST(Zero, TiedTablesOfUnevenSizeAreDividedAlike) {
  const TinyRun run({"training.dtype=float32", "model.hidden_size=240", "model.tie_word_embeddings=true"});
  for (const char* schedule : {"gpipe", "zb_v"}) {
    const Words keys = pipeline(schedule, 2, {"parallelism.data_parallel_degree=2", "model.num_hidden_layers=4"});
    const Trained want = trained(run.plan(4, keys), run, {.steps = 2});
    expect_same_bits(trained(run.plan(4, with(keys, {kStage1})), run, {.steps = 2}), want, schedule);
  }
}

// Each stage, with and without updates in backward, continues the checkpoint of the one before it in the list to the
// last bit, and the first continues that of the last.
TEST(Zero, ACheckpointOfOneStageContinuesUnderAnother) {
  const std::string in_backward = "optimizer.in_backward=true";
  std::vector<Words> stages = {{}, {kStage1, kSmallBuckets}, {in_backward}};
  for (const auto& [name, settings] : kStages) stages.push_back(settings);
  stages.push_back(with(kStages.back().second, {in_backward}));
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run(with(kClipped, {fmt::format("training.dtype={}", dtype), "training.local_batch_size=7"}));
    const Plan unsharded = run.plan(3);
    const std::string saved = unsharded.config.job.dump_folder + "/checkpoints/step-000002";
    const Trained want = trained(unsharded, run, {.steps = 4});
    for (size_t i = 0; i < stages.size(); ++i) {
      const Words &before = stages[i], &after = stages[(i + 1) % stages.size()];
      trained(run.plan(3, before), run, {.steps = 2});
      const Trained rest = trained(run.plan(3, after), run, {.steps = 4, .resume_from = saved});
      const std::string what = fmt::format("{}, {} to {}", dtype, fmt::join(before, " "), fmt::join(after, " "));
      EXPECT_EQ(rest.ranks[0].last().loss, want.ranks[0].last().loss) << what;
      EXPECT_TRUE(rest.files == want.files) << what;
    }
  }
}

// A rank that keeps the state of another rank's chunks has not the gradients that it counts in the norm.
TEST(Zero, AWrongOwnerIsSeen) {
  const TinyRun run({"training.dtype=float32"});
  const Plan plan = run.plan(2, {kStage1});
  const auto train = [&](const auto& owner_of) {
    run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport});
      SessionParts parts = session_parts(plan, comm);
      parts.kept.owned = FlatChunks{};
      for (const GradientBucket& bucket : parts.buckets) {
        const Range chunk = bucket.chunk(owner_of(rank));
        parts.kept.owned->emplace_back(chunk.begin, chunk.end);
      }
      Session session(plan, run.data().train, comm, std::move(parts));
      session.weights().initialize(static_cast<uint64_t>(plan.config.training.seed));
      session.gradients(1, {});
    });
  };
  EXPECT_NO_THROW(train([](int rank) { return rank; }));
  EXPECT_THROW(train([](int rank) { return 1 - rank; }), LogicError);
}

}  // namespace
}  // namespace orthant::zero_test
