// A run with sharded states (ZeRO) has the bits of the same run without: losses, norms, gradients, weights and every
// byte of a checkpoint, if it reduces gradients once a step. If it reduces those of each microbatch, the sums have
// another order, and differ by rounding. Every run sends the planned bytes. The controls keep the state of another
// rank's chunks, or drop the gradients of a microbatch.
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
  std::vector<std::vector<ParameterInfo>> parameters;  // by rank
};
Trained trained(const Plan& plan, const TinyRun& run, Course course) {
  course.save = true;
  Trained t{.ranks = train_ranks(plan, run.data(), course), .files = {}, .parameters = {}};
  t.files = checkpoint_bytes(plan, course.steps);
  for (int rank = 0; rank < plan.mesh.size(); ++rank) t.parameters.push_back(plan.parameters_of(rank));
  return t;
}

// The name of the first parameter whose shards differ in two flat buffers, which may order the parameters differently.
std::string first_difference(const Trained& a, const at::Tensor& flat_a, const Trained& b, const at::Tensor& flat_b,
                             size_t rank) {
  const auto &of_a = a.parameters[rank], &of_b = b.parameters[rank];
  const FlatLayout layout_a = flat_layout(of_a), layout_b = flat_layout(of_b);
  for (size_t p = 0; p < of_a.size(); ++p) {
    const int64_t size = of_a[p].shard_size();
    const at::Tensor in_a = flat_a.narrow(0, layout_a.parameter_offsets[p], size);
    if (!in_a.equal(flat_b.narrow(0, layout_b.parameter_offsets[p], size))) return of_a[p].name;
  }
  return "";
}

void expect_same_bits(const Trained& have, const Trained& want, const std::string& what) {
  for (size_t rank = 0; rank < want.ranks.size(); ++rank) {
    const auto &sharded = have.ranks[rank], &whole = want.ranks[rank];
    ASSERT_EQ(sharded.steps.size(), whole.steps.size()) << what;
    for (size_t step = 0; step < whole.steps.size(); ++step) {
      EXPECT_EQ(sharded.steps[step].loss, whole.steps[step].loss) << what << ", rank " << rank;
      EXPECT_EQ(sharded.steps[step].norm, whole.steps[step].norm) << what << ", rank " << rank;
      EXPECT_EQ(first_difference(have, sharded.steps[step].gradients, want, whole.steps[step].gradients, rank), "")
          << what << ", gradients of step " << step << ", rank " << rank;
    }
    EXPECT_EQ(first_difference(have, sharded.values, want, whole.values, rank), "") << what << ", rank " << rank;
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

// The settings of stages 2 and 3, by name.
const std::vector<std::pair<std::string, Words>> kStages = {
    {"stage 2", {"parallelism.zero_stage=2"}},
    {"stage 3, never", {"parallelism.zero_stage=3", "parallelism.zero_reshard=never"}},
    {"stage 3, microbatch", {"parallelism.zero_stage=3", "parallelism.zero_reshard=microbatch"}},
    {"stage 3, step", {"parallelism.zero_stage=3"}}};

void expect_planned_traffic(const Trained& have, const Plan& plan, const std::string& what) {
  for (size_t rank = 0; rank < have.ranks.size(); ++rank) {
    EXPECT_EQ(have.ranks[rank].last().traffic, planned_traffic(plan, rank)) << what << ", rank " << rank;
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

const Words kClipped = {"training.max_norm=0.5", "training.clip_by=previous_norm"};

// Updates in backward have the bits of updates after it, with all stages of ZeRO and one microbatch. After the row no
// gradient is left.
SWEEP_TEST(UpdateInBackward, HasTheBitsOfAnUpdateAfterIt) {
  const std::string in_backward = "optimizer.in_backward=true";
  std::vector<Layout> cases;
  for (const auto& [name, ranks, keys] : layouts()) {
    if (std::ranges::any_of(keys, [](const std::string& key) { return key.find("pipeline_") != key.npos; })) continue;
    cases.push_back({name, ranks, keys});
    for (const auto& [stage, settings] : kStages) cases.push_back({name + ", " + stage, ranks, with(keys, settings)});
  }
  const Words copies = {"parallelism.zero_stage=2", "parallelism.data_parallel_replicate_degree=2"};
  cases.push_back({"data 4 in 2 copies", 4, copies});
  cases.push_back({"Muon", 3, {"optimizer.name=muon"}});
  cases.push_back({"Muon, stage 1", 3, {"optimizer.name=muon", kStage1, kSmallBuckets}});
  cases.push_back({"SGD, recomputed blocks", 2, {"optimizer.name=sgd", kRecompute}});
  cases.push_back({"clipped by the previous norm, stage 1", 2, with(kClipped, {kStage1})});
  cases.push_back({"clipped by the previous norm, Muon", 1, with(kClipped, {"optimizer.name=muon"})});
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype), "training.max_norm=0", "training.local_batch_size=7"});
    for (const auto& [name, ranks, keys] : sweep.of(cases, 5)) {
      const std::string what = fmt::format("{}, {}", name, dtype);
      SCOPED_TRACE(what);
      const Plan plan = run.plan(ranks, with(keys, {in_backward}));
      const Trained want = trained(run.plan(ranks, keys), run, {.steps = 3});
      const Trained have = trained(plan, run, {.steps = 3});
      expect_same_bits(have, want, what);
      expect_planned_traffic(have, plan, what);
    }
  }
}

// Clipping by the previous norm limits the second step as that norm says, and not the first.
TEST(UpdateInBackward, IsClippedByThePreviousNorm) {
  const TinyRun run({"training.local_batch_size=7", "optimizer.name=sgd", "optimizer.momentum=0",
                     "optimizer.weight_decay=0"});
  const auto train = [&](const Words& keys) {
    return train_ranks(run.plan(1, with(keys, {"optimizer.in_backward=true"})), run.data(), {.steps = 2})[0].steps;
  };
  const auto clipped = train(kClipped), free = train({"training.max_norm=0"});
  EXPECT_GT(clipped[0].norm, 0.5);
  EXPECT_TRUE(clipped[0].weights.equal(free[0].weights));
  const at::Tensor by_clipped = clipped[1].weights - clipped[0].weights, by_free = free[1].weights - free[0].weights;
  EXPECT_NEAR((by_clipped.norm() / by_free.norm()).item<double>(), 0.5 / clipped[0].norm, 1e-6);
}

// A gradient that is not finite stops all later updates, so that the weights can be examined, and it is named.
TEST(UpdateInBackward, StopsAtAGradientThatIsNotFinite) {
  const TinyRun run({"training.local_batch_size=7", "training.max_norm=0", "optimizer.in_backward=true"});
  const Plan plan = run.plan(1);
  run_ranks(1, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(1);
    const std::string nan_parameter = "model.layers.1.mlp.down_proj.weight",
                      earlier = "model.layers.0.mlp.down_proj.weight";
    const auto index_of = [&](const std::string& name) {
      const auto& all = session.weights().parameters();
      return static_cast<size_t>(std::ranges::find(all, name, &ParameterInfo::name) - all.begin());
    };
    const Weight& nan_weight = session.weights()[nan_parameter];
    session.weights().on_gradient = [&, count = session.weights().on_gradient](const Weight& weight) {
      if (&weight == &nan_weight) weight.gradient.fill_(std::nan(""));
      count(weight);
    };
    const at::Tensor head = session.weights().value(index_of("lm_head.weight")).clone(),
                     below = session.weights().value(index_of(earlier)).clone();
    const StepResult result = session.gradients(1, {});
    EXPECT_TRUE(std::isnan(result.norm));
    EXPECT_FALSE(session.weights().value(index_of("lm_head.weight")).equal(head));  // updated before
    EXPECT_TRUE(session.weights().value(index_of(earlier)).equal(below));
    EXPECT_EQ(session.find_first_not_finite(1).what, "the gradient of " + nan_parameter);
    for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      EXPECT_FALSE(session.weights().segmented_gradients().is_allocated(bucket)) << bucket;
    }
  });
}

// Ranks that exchange the matrices of Muon all take part in the exchange, also after a gradient that is not finite on
// one of them. No rank applies an update from such a gradient.
TEST(UpdateInBackward, MuonOnAMeshStopsAtAGradientThatIsNotFinite) {
  const TinyRun run({"training.local_batch_size=7", "training.max_norm=0", "optimizer.in_backward=true",
                     "optimizer.name=muon"});
  const Plan plan = run.plan(2, one_dimension(2).keys);
  run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(1);
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    const Weight& spoiled = session.weights()[name];
    session.weights().on_gradient = [&, count = session.weights().on_gradient](const Weight& weight) {
      if (&weight == &spoiled && rank == 1) weight.gradient.fill_(std::nan(""));
      count(weight);
    };
    EXPECT_TRUE(std::isnan(session.gradients(1, {}).norm)) << rank;
    EXPECT_EQ(session.first_weight_not_finite(), "") << rank;
  });
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

// Each stage, with and without updates in backward, continues the checkpoint of the one before it in the list to the
// last bit, and the first continues that of the last.
TEST(Zero, ACheckpointOfOneStageContinuesUnderAnother) {
  const std::string in_backward = "optimizer.in_backward=true";
  std::vector<Words> stages = {{}, {kStage1, kSmallBuckets}, {in_backward}};
  for (const auto& [name, settings] : kStages) stages.push_back(settings);
  stages.push_back(with(kStages.back().second, {in_backward}));
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run(with(kClipped, {fmt::format("training.dtype={}", dtype), "training.local_batch_size=7"}));
    const Plan whole = run.plan(3);
    const std::string saved = whole.config.job.dump_folder + "/checkpoints/step-000002";
    const Trained want = trained(whole, run, {.steps = 4});
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
