// Checkpoints of one layout, loaded and saved again by another: every tensor keeps its hash, so no bit is lost on the
// way there and back. Saves in the background store the step that they were made of. Controls: a bit that is lost, and
// tensors that are not copied.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "checkpoint/manifest.h"
#include "runtime/save_parts.h"
#include "tests/support/pipelines.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/tiny_run.h"

namespace orthant::save_layouts_test {
namespace {

namespace fs = std::filesystem;

std::map<std::string, uint64_t> hashes_of(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifestFile;
  std::map<std::string, uint64_t> hashes;
  for (const auto& [name, tensor] : parse_manifest(read_file(path), path).tensors) hashes[name] = tensor.xxh3;
  return hashes;
}

std::string in_folder(const TinyRun& run, const std::string& name) {
  return fmt::format("job.dump_folder={}/{}", run.folder(), name);
}

std::string checkpoint_of(const Plan& plan, int64_t step) {
  return fmt::format("{}/checkpoints/step-{:06}", plan.config.job.dump_folder, step);
}

// Limits with which all ranks of a tiny run write, several files each, in several rounds.
constexpr SaveLimits kSmall = {.file_bytes = 4000, .writer_bytes = 1000, .round_bytes = 3000};

// Loads a checkpoint, optionally changes the state, and saves it. Returns the hashes of the new checkpoint.
std::map<std::string, uint64_t> saved_again(const TinyRun& run, const Plan& plan, const std::string& from,
                                            const SaveLimits& limits, bool loses_a_bit = false) {
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    const TrainState state = load_snapshot(from, plan, run.data(), session, kNoFiles);
    const at::Tensor moments = session.optimizer().state().front().flat;
    if (loses_a_bit && rank == 0) moments[-1].mul_(1 + 4e-16);
    SnapshotSaver saver(plan, run.data(), session, limits);
    saver.save(state);
    saver.wait();
  });
  const std::string saved = checkpoint_of(plan, 2);
  std::map<std::string, uint64_t> hashes = hashes_of(saved);
  fs::remove_all(plan.config.job.dump_folder);
  return hashes;
}

std::vector<TensorCut> layouts() {
  const auto p = [](const std::string& key) { return "parallelism." + key; };
  const auto with_zero = [&](TensorCut layout, int stage) {
    layout.keys.push_back(p(fmt::format("zero_stage={}", stage)));
    return layout;
  };
  std::vector<TensorCut> all = {{1, {}},
                                {3, {}},
                                with_zero({4, {}}, 1),
                                with_zero({4, {}}, 2),
                                with_zero({4, {}}, 3),
                                with_zero({4, {p("data_parallel_replicate_degree=2")}}, 3),
                                {2, {kWithRing}},
                                with_zero({4, {kWithUlysses}}, 3),
                                one_dimension(2),
                                with_zero(one_dimension(2, {}, 2), 1),
                                with_zero(one_dimension(4, {}, 2), 3),
                                grid(2, 2, 1),
                                with_zero(grid(2, 1, 2), 1),
                                with_zero(grid(2, 2, 1, {}, 2), 3),
                                {2, pipeline("1f1b", 2)},
                                with_zero({4, pipeline("zb_v", 2, {"parallelism.data_parallel_degree=2"})}, 1),
                                with_zero({4, pipeline("1f1b", 2, {p("outer_axis=data")})}, 2),
                                one_dimension(2, pipeline("1f1b", 2), 2),
                                {2, cut("algorithm_2", "1f1b", 2, {})}};
  for (TensorCut& layout : all) layout.keys.insert(layout.keys.end(), kBatch.begin(), kBatch.end());
  return all;
}

// Saves step 2 of one layout, and passes it through pairs of others.
void expect_pairs_keep_every_bit(int pairs, const std::string& dtype) {
  const TinyRun run(
      {"training.dtype=" + dtype, "model.num_hidden_layers=4", "model.num_key_value_heads=4", kBatch.front()});
  const std::vector<TensorCut> all = layouts();
  const Plan first = run.plan(2, {in_folder(run, "first")});
  train_ranks(first, run.data(), {.steps = 2, .save = true});
  const std::string checkpoint = checkpoint_of(first, 2);
  const auto hashes = hashes_of(checkpoint);
  ASSERT_GT(hashes.size(), 100u);
  std::mt19937 random(3);
  const auto draw = [&](const std::string& name) {
    TensorCut layout = all[random() % all.size()];
    layout.keys.push_back(in_folder(run, name));
    if (random() % 2 == 0) layout.keys.push_back("checkpoint.async_mode=async");
    return layout;
  };
  for (int pair = 0; pair < pairs; ++pair) {
    // The layout of the pair that saves is loaded from the other's checkpoint, which came from the first.
    const TensorCut a = draw("a"), b = draw("b");
    const Plan one = run.plan(a.ranks, a.keys), other = run.plan(b.ranks, b.keys);
    run_ranks(one.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(one.mesh, rank, rendezvous);
      Session session(one, run.data().train, comm);
      const TrainState state = load_snapshot(checkpoint, one, run.data(), session, kNoFiles);
      SnapshotSaver saver(one, run.data(), session, kSmall);
      saver.save(state);
      saver.wait();
    });
    EXPECT_EQ(hashes_of(checkpoint_of(one, 2)), hashes) << a.name();
    EXPECT_EQ(saved_again(run, other, checkpoint_of(one, 2), pair % 2 == 0 ? kSmall : SaveLimits()), hashes)
        << a.name() << " to " << b.name();
    fs::remove_all(one.config.job.dump_folder);
  }
}

TEST(SaveLayouts, PairsKeepEveryBit) { expect_pairs_keep_every_bit(6, "bfloat16"); }

TEST(SaveLayouts, ALostBitIsSeen) {
  const TinyRun run(kBatch);
  const Plan plan = run.plan(2);
  train_ranks(plan, run.data(), {.steps = 2, .save = true});
  const Plan other = run.plan(2, {in_folder(run, "other")});
  EXPECT_EQ(saved_again(run, other, checkpoint_of(plan, 2), {}), hashes_of(checkpoint_of(plan, 2)));
  EXPECT_NE(saved_again(run, other, checkpoint_of(plan, 2), {}, true), hashes_of(checkpoint_of(plan, 2)));
}

TEST(LongSaveLayouts, PairsKeepEveryBit) {
  for (const char* dtype : {"float32", "bfloat16"}) expect_pairs_keep_every_bit(100, dtype);
}

// Training goes on while a save in the background is not yet written: it stores the step before.
TEST(SaveInBackground, StoresItsOwnStep) {
  for (const TensorCut& layout : {TensorCut{1, {}}, TensorCut{2, {"parallelism.zero_stage=3"}}, one_dimension(2)}) {
    const TinyRun run;
    const Plan plan = run.plan(layout.ranks, layout.keys);
    train_ranks(plan, run.data(), {.steps = 2, .save = true});
    const auto waited_for = hashes_of(checkpoint_of(plan, 2));
    std::vector<std::string> keys = layout.keys;
    keys.insert(keys.end(), {in_folder(run, "async"), "checkpoint.async_mode=async"});
    const Plan async = run.plan(layout.ranks, keys);
    run_ranks(layout.ranks, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(async.mesh, rank, rendezvous);
      Session session(async, run.data().train, comm);
      session.weights().initialize(static_cast<uint64_t>(async.config.training.seed));
      const auto step = [&](int64_t number) { session.update(number, session.gradients(number, {})); };
      const SavePlan files = plan_files(async);
      PartCollector views(async, files, session, false), copies(async, files, session, true);
      SnapshotSaver saver(async, run.data(), session);
      step(1), step(2);
      const std::vector<CollectedTensor> shared = views.collect(0), copied = copies.collect(0);
      saver.save({.step = 2, .tokens = 2 * 7 * 16});
      step(3), step(4);
      saver.wait();
      EXPECT_EQ(saver.last_saved(), checkpoint_of(async, 2));
      // The control: tensors without a copy are those of step 4 now, where the rank has them alone.
      int changed = 0;
      for (size_t i = 0; i < shared.size(); ++i) changed += shared[i].content.equal(copied[i].content) ? 0 : 1;
      EXPECT_TRUE(layout.ranks > 1 || changed == std::ssize(shared)) << changed;
    });
    EXPECT_EQ(hashes_of(checkpoint_of(async, 2)), waited_for) << layout.name();
  }
}

}  // namespace
}  // namespace orthant::save_layouts_test
