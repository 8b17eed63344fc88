// A run with sharded optimizer state (ZeRO) has the bits of the same run without: losses, norms, gradients, weights and
// every byte of a checkpoint. It sends the planned bytes. The control keeps the state of another rank's chunks.
#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::zero_test {
namespace {

const std::string kStage1 = "parallelism.zero_stage=1", kSmallBuckets = "parallelism.bucket_mib=0.004";

struct Layout {
  std::string name;
  int ranks;
  Words keys;
};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<Layout> layouts() {
  const std::string two = "parallelism.data_parallel_degree=2", tied = "model.tie_word_embeddings=true";
  const Words deep = {"model.num_hidden_layers=4"};
  return {{"one rank", 1, {}},
          {"data 2", 2, {}},
          {"data 3", 3, {kSmallBuckets}},
          {"data 4, tied", 4, {tied}},
          {"data 8, more ranks than sequences", 8, {kSmallBuckets}},
          {"data 2, ring 2", 4, {kWithRing, kSmallBuckets}},
          {"ulysses 2", 2, {kWithUlysses}},
          {"data 2, Linformer on a ring of 2", 4,
           {kWithRing, "model.objective=masked", "model.linformer_length=4",
            "parallelism.context_parallel_attention=linformer", "parallelism.context_parallel_placement=contiguous"}},
          {"data 2, [2, 2, 1]", 8, grid(2, 2, 1, {kSmallBuckets, kBatch[0]}).keys},
          {"[2, 1, 2], the depth holds replicas", 4, grid(2, 1, 2, {kBatch[0]}).keys},
          {"data 2, tensor 2 without sequence", 4, one_dimension(2, {kNoSequence, two}).keys},
          {"data 2, tensor 2, head norms", 4, one_dimension(2, {"model.qk_norm=true", two}).keys},
          {"data 2, 1f1b", 4, pipeline("1f1b", 2, {two, kSmallBuckets})},
          {"data 2, zb_v, tied, both on one rank", 4, with(pipeline("zb_v", 2, {two, tied}), deep)},
          {"data 2, gpipe, tied on two ranks", 4, pipeline("gpipe", 2, {two, tied, kSmallBuckets})},
          {"data 2, algorithm_2", 4, cut("algorithm_2", "1f1b", 2, {two})},
          {"data 2, interleaved, algorithm_1, tied", 4,
           with(cut("algorithm_1", "interleaved_1f1b", 2, {two, tied}), deep)}};
}

// All bytes of the newest checkpoint's tensors, by file.
std::map<std::string, std::string> checkpoint_bytes(const Plan& plan, int64_t step) {
  const std::string folder = fmt::format("{}/checkpoints/step-{:06}", plan.config.job.dump_folder, step);
  std::map<std::string, std::string> bytes;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") bytes[entry.path().filename()] = slurp(entry.path());
  }
  return bytes;
}

struct Trained {
  std::vector<RankTrace> ranks;
  std::map<std::string, std::string> files;
};
Trained trained(const Plan& plan, const TinyRun& run, Course course) {
  course.save = true;
  Trained t{.ranks = train_ranks(plan, run.data(), course), .files = {}};
  t.files = checkpoint_bytes(plan, course.steps);
  return t;
}

void expect_same_bits(const Trained& have, const Trained& want, const std::string& what) {
  for (size_t rank = 0; rank < want.ranks.size(); ++rank) {
    const auto &sharded = have.ranks[rank], &whole = want.ranks[rank];
    ASSERT_EQ(sharded.steps.size(), whole.steps.size()) << what;
    for (size_t step = 0; step < whole.steps.size(); ++step) {
      EXPECT_EQ(sharded.steps[step].loss, whole.steps[step].loss) << what << ", rank " << rank;
      EXPECT_EQ(sharded.steps[step].norm, whole.steps[step].norm) << what << ", rank " << rank;
      EXPECT_TRUE(sharded.steps[step].gradients.equal(whole.steps[step].gradients)) << what << ", rank " << rank;
    }
    EXPECT_TRUE(sharded.values.equal(whole.values)) << what << ", rank " << rank;
  }
  EXPECT_GE(want.files.size(), 2u);
  EXPECT_TRUE(have.files == want.files) << what;
}

SWEEP_TEST(Zero, StageOneHasTheBitsOfStageZero) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype), "training.max_norm=1"});
    for (const auto& [name, ranks, keys] : sweep.of(layouts(), 9)) {
      const std::string what = fmt::format("{}, {}", name, dtype);
      const Plan whole = run.plan(ranks, keys), sharded = run.plan(ranks, with(keys, {kStage1}));
      const Trained want = trained(whole, run, {.steps = 3}), have = trained(sharded, run, {.steps = 3});
      expect_same_bits(have, want, what);
      for (size_t rank = 0; rank < have.ranks.size(); ++rank) {
        EXPECT_EQ(have.ranks[rank].last().traffic, planned_traffic(sharded, rank)) << what << ", rank " << rank;
      }
    }
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

// Each rank keeps state for its own chunks only, and all ranks together keep it once.
TEST(Zero, TheStateOfAllRanksTogetherIsThatOfOne) {
  const TinyRun run({"training.dtype=float32"});
  const Plan one = run.plan(1), four = run.plan(4, {kStage1});
  const auto whole = train_ranks(one, run.data(), {.steps = 1}), ranks = train_ranks(four, run.data(), {.steps = 1});
  int64_t elements = 0;
  for (const RankTrace& rank : ranks) {
    elements += rank.optimizer_state[0].numel();
    EXPECT_LT(rank.optimizer_state[0].numel(), whole[0].optimizer_state[0].numel() / 4 + 256);
    EXPECT_EQ(rank.optimizer_state[0].numel() * 8, four.memory[static_cast<size_t>(&rank - ranks.data())].optimizer);
  }
  EXPECT_EQ(elements, whole[0].optimizer_state[0].numel());
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
    EXPECT_EQ(plan.memory[at].optimizer, state) << rank;
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

TEST(Zero, ACheckpointOfOneStageContinuesUnderAnother) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype)});
    const Plan whole = run.plan(3), sharded = run.plan(3, {kStage1, kSmallBuckets});
    const std::string saved = whole.config.job.dump_folder + "/checkpoints/step-000003";
    const Trained want = trained(whole, run, {.steps = 6});
    for (const bool to_sharded : {false, true}) {
      trained(to_sharded ? whole : sharded, run, {.steps = 3});
      const Trained rest = trained(to_sharded ? sharded : whole, run, {.steps = 6, .resume_from = saved});
      EXPECT_EQ(rest.ranks[0].last().loss, want.ranks[0].last().loss) << dtype;
      EXPECT_TRUE(rest.files == want.files) << dtype << ", to stage " << to_sharded;
    }
  }
}

TEST(Zero, AWrongOwnerIsSeen) {
  const TinyRun run({"training.dtype=float32"});
  const Plan plan = run.plan(2, {kStage1});
  const auto right = train_ranks(plan, run.data(), {.steps = 2});
  double loss = 0;
  run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport});
    SessionParts parts = session_parts(plan, comm);
    parts.owned = FlatChunks{};
    for (const GradientBucket& bucket : parts.buckets) {
      const Range others = bucket.chunk(1 - rank);
      parts.owned->emplace_back(others.begin, others.end);
    }
    Session session(plan, run.data().train, comm, std::move(parts));
    session.weights().initialize(static_cast<uint64_t>(plan.config.training.seed));
    for (const int64_t step : {1, 2}) {
      const StepResult result = session.gradients(step, {});
      session.update(step, result);
      if (rank == 0) loss = result.loss;
    }
  });
  EXPECT_GT(std::abs(loss - right[0].last().loss), 1e-6);
}

}  // namespace
}  // namespace orthant::zero_test
