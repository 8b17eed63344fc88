// Whole runs with weights cut over a tensor mesh: every number is that of one rank, the plan's bytes are what is sent,
// and what is saved on one mesh goes on on another (tensor-parallelism.md, C10).
#include <gtest/gtest.h>

#include "base/errors.h"
#include "runtime/verify.h"
#include "tests/support/says.h"
#include "tests/support/sequence_cuts.h"

namespace orthant {
namespace {

struct TensorCut {
  int ranks = 1;
  std::vector<std::string> keys;

  std::string name() const {
    std::string text = fmt::format("{} ranks", ranks);
    for (const auto& key : keys) text += ", " + key.substr(key.find('.') + 1);
    return text;
  }
};

std::string tensor(const std::string& key, const std::string& value) {
  return "parallelism.tensor_parallel_" + key + "=" + value;
}
TensorCut one_dimension(int columns, std::vector<std::string> more = {}, int others = 1) {
  more.push_back(tensor("degree", std::to_string(columns)));
  return {columns * others, more};
}
TensorCut mesh(int rows, int columns, int depth, std::vector<std::string> more = {}, int others = 1) {
  more.push_back(tensor("kind", depth > 1 ? "2.5d" : "2d"));
  more.push_back(tensor("mesh", fmt::format("[{},{},{}]", rows, columns, depth)));
  return {rows * columns * depth * others, more};
}

const std::string kSumma = tensor("product", "summa"), kNoSequence = tensor("sequence", "false"),
                  kRing = "parallelism.context_parallel_ring=2", kUlysses = "parallelism.context_parallel_ulysses=2",
                  kRecompute = "activation_checkpoint.mode=full";

// Of a batch of 8 sequences of 16 tokens; four heads, two of keys.
std::vector<TensorCut> cuts() {
  return {one_dimension(2),
          one_dimension(2, {kNoSequence}),
          one_dimension(2, {}, 2),
          mesh(2, 2, 1),
          mesh(2, 2, 1, {kSumma}),
          mesh(2, 2, 2),
          mesh(2, 2, 2, {kSumma}),
          mesh(1, 2, 4),
          mesh(1, 1, 8),
          mesh(4, 1, 1),
          mesh(4, 2, 1, {"parallelism.bucket_mib=0.005"}),
          mesh(2, 1, 2, {}, 2),
          mesh(2, 2, 1, {kRing}, 2),
          mesh(2, 1, 2, {kUlysses}, 2),
          mesh(1, 2, 2, {kRing, kUlysses}, 4),
          one_dimension(2, {kRing}, 2),
          one_dimension(2, {kUlysses, kNoSequence}, 2)};
}

const std::vector<std::string> kBatch = {"training.global_batch_size=8"};

TEST(TensorRuns, HaveOneRanksNumbers) {
  const TinyRun run(kBatch);
  const auto want = train_ranks(run.plan(1), run.data())[0];
  for (const TensorCut& cut : cuts()) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const NamedError worst = worst_of_run(plan, train_ranks(plan, run.data()), want);
    EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name();
  }
}

// Tied tables, dropout, recomputation, and clipping that clips.
TEST(TensorRuns, OfOtherModelsHaveOneRanksNumbers) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"model.tie_word_embeddings=true"}, {"model.dropout=0.2", kRecompute},
        {"training.max_norm=0.05"}, {"data.mask_documents=true", "data.long_documents=cut"}}) {
    std::vector<std::string> keys = kBatch;
    keys.insert(keys.end(), more.begin(), more.end());
    const TinyRun run(keys);
    const auto want = train_ranks(run.plan(1), run.data())[0];
    for (const TensorCut& cut : {one_dimension(2), mesh(2, 2, 2), mesh(2, 2, 1, {kSumma}), mesh(2, 1, 1, {kRing}, 2)}) {
      const Plan plan = run.plan(cut.ranks, cut.keys);
      const NamedError worst = worst_of_run(plan, train_ranks(plan, run.data()), want);
      EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name() << ", " << more[0];
    }
  }
}

TEST(TensorRuns, SendWhatThePlanSays) {
  const TinyRun run(kBatch);
  for (const TensorCut& cut : cuts()) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const auto ranks = train_ranks(plan, run.data(), {.steps = 1});
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      Traffic planned;
      for (const auto& entry : plan.communication) {
        planned.bytes += entry.bytes_per_rank[rank];
        planned.calls += entry.calls;
      }
      EXPECT_EQ(ranks[rank].last().traffic, planned) << cut.name() << ", rank " << rank;
    }
  }
}

// Replicas of a weight, over depth and data, and of gains over rows, stay one to the bit.
TEST(TensorRuns, KeepTheirReplicasInStep) {
  const TinyRun run({"training.global_batch_size=8", "training.dtype=float32"});
  for (const TensorCut& cut : {mesh(2, 2, 2), one_dimension(2, {}, 2), one_dimension(2, {kNoSequence})}) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const auto ranks = train_ranks(plan, run.data(), {.steps = 5});
    for (int rank = 0; rank < cut.ranks; ++rank) {
      const auto& twin = ranks[static_cast<size_t>(plan.first_like(rank))];
      EXPECT_TRUE(ranks[static_cast<size_t>(rank)].last().weights.equal(twin.last().weights)) << cut.name() << rank;
    }
  }
}

TEST(TensorRuns, GoOnOnAnotherMesh) {
  const TinyRun run(kBatch);
  const auto want = train_ranks(run.plan(1), run.data(), {.steps = 4})[0];
  const TensorCut cuts_in_turn[] = {mesh(2, 2, 2), one_dimension(2), mesh(4, 1, 1), {1, {}}, mesh(2, 2, 1, {kSumma})};
  for (size_t i = 0; i + 1 < std::size(cuts_in_turn); ++i) {
    const Plan first = run.plan(cuts_in_turn[i].ranks, cuts_in_turn[i].keys);
    train_ranks(first, run.data(), {.steps = 2, .save = true});
    const std::string saved = run.folder() + "/out/checkpoints/step-000002";
    const Plan next = run.plan(cuts_in_turn[i + 1].ranks, cuts_in_turn[i + 1].keys);
    const auto have = train_ranks(next, run.data(), {.steps = 4, .resume_from = saved});
    for (size_t rank = 0; rank < have.size(); ++rank) {
      const NamedError weight = worst_parameter(next, have[rank].last().weights, want.last().weights,
                                                static_cast<int>(rank));
      EXPECT_LT(weight.error, 1e-10) << weight.name << ", " << cuts_in_turn[i].name() << " then "
                                     << cuts_in_turn[i + 1].name();
    }
  }
}

TEST(TensorRuns, ValidateAsOneRank) {
  const TinyRun run(kBatch);
  const auto nats_of = [&](const TensorCut& cut) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    std::vector<Session::Validation> sums(static_cast<size_t>(cut.ranks));
    run_ranks(cut.ranks, [&](const Rendezvous& meeting, int rank) {
      Comm comm(plan.mesh, rank, meeting);
      Session session(plan, run.data().train, comm);
      session.weights().initialize(3);
      sums[static_cast<size_t>(rank)] = session.validate(*run.data().held_out, 50, run.data().bytes_of_token);
    });
    return sums;
  };
  const auto one = nats_of({1, {}})[0];
  ASSERT_NE(run.data().held_out->num_samples() % 8, 0) << "else no rank is without a sequence";
  for (const TensorCut& cut : {one_dimension(2), mesh(4, 2, 1), mesh(2, 1, 4)}) {
    for (const auto& have : nats_of(cut)) {
      EXPECT_LT(relative_error(have.nats, one.nats), 1e-12) << cut.name();
      EXPECT_EQ(have.labels, one.labels) << cut.name();
    }
  }
}

TEST(TensorRuns, AreProvedByVerify) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run({"training.global_batch_size=8", fmt::format("training.dtype={}", dtype)});
    for (const TensorCut& cut : {one_dimension(2), mesh(2, 2, 2), mesh(2, 2, 1, {kSumma})}) {
      const VerifyReport report = verify_layout(run.plan(cut.ranks, cut.keys), run.data(), 2);
      EXPECT_TRUE(report.ok) << dtype << ", " << cut.name() << ": " << report.first_difference;
    }
  }
}

}  // namespace
}  // namespace orthant
