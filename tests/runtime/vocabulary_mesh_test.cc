// A vocabulary sharded over a pipeline whose pipeline ranks are tensor meshes equals the run of one rank: the numbers,
// the planned bytes, and the work besides the steps. Planted mistakes are the negative controls of verify.
#include <gtest/gtest.h>

#include "runtime/sample.h"
#include "runtime/verify.h"
#include "tests/support/pipelines.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/whole_runs.h"

namespace orthant::vocabulary_mesh_test {
namespace {

const std::string kTied = "model.tie_word_embeddings=true";
constexpr int kPlaces = 2;

Words deep(const Words& more = {}) {
  Words words = kDeep;
  words.push_back(kBatch[0]);
  words.push_back("model.vocab_size=1003");
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Tensor meshes for one pipeline rank.
std::vector<TensorCut> meshes() {
  return {one_dimension(2), one_dimension(2, {kNoSequence}), grid(2, 2, 1), grid(2, 2, 1, {kSumma}),
          grid(1, 2, 1),    grid(1, 2, 1, {kSumma}),         grid(2, 1, 1), grid(2, 1, 1, {kSumma}),
          grid(1, 1, 2)};
}

// The layout of a pipeline with this mesh on each of `positions` pipeline ranks.
TensorCut with(const TensorCut& mesh, const std::string& order, const std::string& schedule, const Words& more = {},
               int positions = kPlaces) {
  Words keys = cut(order, schedule, positions, mesh.keys);
  keys.insert(keys.end(), more.begin(), more.end());
  return {positions * mesh.ranks, keys};
}

std::vector<TensorCut> cuts() {
  return {with(one_dimension(2), "algorithm_2", "1f1b"), with(one_dimension(2, {kNoSequence}), "algorithm_1", "zb_v"),
          with(grid(2, 2, 1), "algorithm_2", "v_half"),  with(grid(1, 2, 1, {kSumma}), "naive", "1f1b"),
          with(grid(2, 1, 1), "algorithm_2", "zb_h1"),   with(grid(1, 1, 2), "algorithm_1", "interleaved_1f1b")};
}

void expect_equal_to_one(const TinyRun& run, const TensorCut& cut, const RankTrace& one) {
  const Plan plan = run.plan(cut.ranks, cut.keys);
  expect_equal(plan, train_ranks(plan, run.data()), one, cut.name());
}

// The first three meshes shard the stream in the three possible ways and run with every algorithm. Each further mesh
// runs with one algorithm, and with another one if weights are tied.
SWEEP_TEST(VocabularyMesh, EqualsOneRank) {
  for (const size_t tied : {0u, 1u}) {
    std::vector<TensorCut> layouts;
    for (size_t mesh = 0; mesh < meshes().size(); ++mesh) {
      for (size_t order = 0; order < kOrders.size(); ++order) {
        const bool all = !tied && mesh < 3;
        if (all || (mesh + tied) % kOrders.size() == order) {
          layouts.push_back(with(meshes()[mesh], kOrders[order], "1f1b"));
        }
      }
    }
    const TinyRun run(deep(tied ? Words{kTied} : Words{}));
    const RankTrace one = train_ranks(run.plan(1), run.data())[0];
    for (const TensorCut& layout : sweep.of(layouts, tied ? 3 : 5)) expect_equal_to_one(run, layout, one);
  }
}

SWEEP_TEST(VocabularyMesh, InEverySchedule) {
  const TinyRun run(deep());
  const RankTrace one = train_ranks(run.plan(1), run.data())[0];
  bool over_columns = false;
  for (const std::string& schedule : sweep.of(kEverySchedule, 3)) {
    over_columns = !over_columns;
    expect_equal_to_one(run, with(over_columns ? one_dimension(2) : grid(1, 2, 1), "algorithm_2", schedule), one);
    expect_equal_to_one(run, with(over_columns ? grid(2, 1, 1) : one_dimension(2), "algorithm_1", schedule), one);
  }
}

SWEEP_TEST(VocabularyMesh, ComposesWithTheRest) {
  const std::string p = "parallelism.";
  const Words dropped = {"model.dropout=0.2", kTied};
  struct Case {
    Words model;
    TensorCut cut;
  };
  const std::vector<Case> cases = {{{}, with(grid(2, 2, 1), "interlaced", "1f1b")},
                                   {{}, with(one_dimension(2), "redistribution", "1f1b")},
                                   {{}, with(one_dimension(2), "algorithm_2", "zb_h1", {}, 3)},
                                   {dropped, with(grid(2, 1, 1), "algorithm_2", "zb_v", {kRecompute})},
                                   {{kTied, "training.max_norm=0.05"}, with(one_dimension(2), "naive", "v_min")},
                                   {{"training.local_batch_size=3"}, with(one_dimension(2), "algorithm_1", "1f1b")}};
  for (const Case& c : sweep.of(cases, 3)) {
    const TinyRun run(deep(c.model));
    expect_equal_to_one(run, c.cut, train_ranks(run.plan(1), run.data())[0]);
  }
  const TinyRun run(deep());
  const RankTrace one = train_ranks(run.plan(1), run.data())[0];
  TensorCut data = with(one_dimension(2), "algorithm_2", "1f1b", {p + "data_parallel_degree=2"});
  TensorCut ring = with(grid(1, 2, 1), "algorithm_1", "1f1b", {kWithRing});
  for (TensorCut cut : {data, ring}) {
    cut.ranks *= 2;
    expect_equal_to_one(run, cut, one);
  }
}

// With the masked objective, the labels of all tokens that are not masked are ignored.
SWEEP_TEST(VocabularyMesh, IgnoresLabels) {
  const TinyRun run(deep({"model.objective=masked"}));
  const RankTrace one = train_ranks(run.plan(1), run.data())[0];
  for (const TensorCut& cut : sweep.of(cuts(), 3)) expect_equal_to_one(run, cut, one);
}

SWEEP_TEST(VocabularyMesh, ValidatesAsOneRank) {
  const TinyRun run(deep({kTied, "model.dropout=0.1"}));
  expect_validates_as_one_rank(run, sweep.of(cuts(), 2));
}

SWEEP_TEST(VocabularyMesh, GoesOnOverOtherRanks) {
  for (const Words& more : sweep.of(std::vector<Words>{{}, {kTied}}, 1)) {
    const TinyRun run(deep(more));
    std::vector<TensorCut> in_turn = {{1, {}}};
    for (const TensorCut& cut : sweep.of(cuts(), 3)) in_turn.push_back(cut);
    in_turn.push_back({3, pipeline("1f1b", 3)});
    in_turn.push_back(cuts()[2]);
    in_turn.push_back({1, {}});
    expect_goes_on(run, in_turn);
  }
}

// The texts of all ranks, from weights initialized with seed 3.
std::vector<std::string> written(const Plan& plan, const TinyRun& run, bool masked) {
  std::vector<std::string> texts(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport});
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    const auto r = static_cast<size_t>(rank);
    if (masked) texts[r] = filled_text(session, plan, run.data(), comm);
    const bool first_copy = plan.replica_leader(rank) == rank;
    if (!masked && first_copy) texts[r] = sample_text(session, plan, run.data(), comm);
  });
  return texts;
}

SWEEP_TEST(VocabularyMesh, WritesTheSameText) {
  for (const bool masked : {false, true}) {
    const TinyRun run(deep(masked ? Words{"model.objective=masked"} : Words{kTied}));
    const std::string one = written(run.plan(1), run, masked)[0];
    EXPECT_GT(one.size(), 20u);
    for (const TensorCut& cut : sweep.of(cuts(), 3)) {
      for (const std::string& text : written(run.plan(cut.ranks, cut.keys), run, masked)) {
        EXPECT_TRUE(text == one || (text.empty() && !masked)) << cut.name() << ": " << text;
      }
    }
  }
}

SWEEP_TEST(VocabularyMesh, VerifyAcceptsWhatIsRight) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(deep({fmt::format("training.dtype={}", dtype), kTied}));
    expect_verified(run, sweep.of(cuts(), 2), dtype);
  }
}

TEST(VocabularyMesh, VerifyCatchesMistakes) {
  struct Case {
    Fault fault;
    TensorCut cut;
  };
  for (const char* dtype : {"float64", "bfloat16"}) {
    // Ranks hold equal numbers of rows, so that another rank's rows fit.
    const TinyRun run(deep({fmt::format("training.dtype={}", dtype), "model.vocab_size=1004"}));
    for (const Case& c : std::vector<Case>{{Fault::shifted_rows, cuts()[0]},
                                           {Fault::shifted_rows, cuts()[2]},
                                           {Fault::swapped_groups, cuts()[2]},
                                           {Fault::mean_over_rows, cuts()[4]},
                                           {Fault::dropped_depth, cuts()[5]}}) {
      const VerifyReport report = verify_with_fault(run.plan(c.cut.ranks, c.cut.keys), run.data(), 1, c.fault);
      EXPECT_FALSE(report.ok) << dtype << ", " << c.cut.name();
      EXPECT_GT(report.gradients.relative_error, kSeenInAGradient) << dtype << ", " << c.cut.name();
    }
  }
}

}  // namespace
}  // namespace orthant::vocabulary_mesh_test
