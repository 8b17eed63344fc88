// A rank that loads a checkpoint opens the files in which it has a part, and no others. The test hides one file after
// the other: a rank that does not need the hidden file loads the same state.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "checkpoint/manifest.h"
#include "tests/support/says.h"
#include "tests/support/tiny_run.h"

namespace orthant::load_files_test {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;
using Names = std::set<std::string>;

// Limits with which each tensor has a file of its own.
constexpr SaveLimits kOneTensorEach = {.file_bytes = 1, .writer_bytes = 1000, .round_bytes = 1 << 20};
// A share of the checks that contains no file.
constexpr ChecksummedFiles kShareOfAnotherRank{.first = 1'000'000, .every = 1'000'001};

std::string save(const TinyRun& run, const Plan& plan) {
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(1);
    SnapshotSaver saver(plan, run.data(), session, kOneTensorEach);
    saver.save({.step = 1});
    saver.wait();
  });
  return plan.config.job.dump_folder + "/checkpoints/step-000001";
}

Names tensor_files(const std::string& checkpoint) {
  Names files;
  for (const auto& [name, tensor] : read_manifest(checkpoint).tensors) files.insert(tensor.file);
  return files;
}

// The files without which each rank cannot load the checkpoint. Ranks with a file less have loaded the same masters.
std::vector<Names> needed_files(const TinyRun& run, const Plan& plan, const std::string& checkpoint) {
  std::vector<Names> needed(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    const std::string copy = fmt::format("{}-of-rank-{}/step-000001", checkpoint, rank), hidden = copy + "/hidden";
    fs::create_directories(fs::path(copy).parent_path());
    fs::copy(checkpoint, copy, fs::copy_options::recursive);
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    const auto load = [&] { load_snapshot(copy, plan, run.data(), session, kShareOfAnotherRank); };
    load();
    const at::Tensor masters = session.weights().masters().clone();
    for (const std::string& file : tensor_files(copy)) {
      fs::rename(fs::path(copy) / file, hidden);
      session.weights().masters().zero_();
      try {
        load();
        EXPECT_TRUE(session.weights().masters().equal(masters)) << file;
      } catch (const DataError& error) {
        EXPECT_TRUE(says(error.what(), {copy + "/" + file, "cannot open"}));
        needed[static_cast<size_t>(rank)].insert(file);
      }
      fs::rename(hidden, fs::path(copy) / file);
    }
  });
  return needed;
}

// The files of tensors of which the rank holds a shard that is not empty. In bfloat16 it loads masters, not values.
Names files_of_shards(const Plan& plan, int rank, const std::string& checkpoint) {
  Names files;
  for (const auto& [name, tensor] : read_manifest(checkpoint).tensors) {
    for (const ParameterInfo& parameter : plan.parameters_of(rank)) {
      const bool is_state = name.ends_with("." + parameter.name), is_value = name == parameter.name;
      const bool is_loaded = is_state || (is_value && plan.config.training.dtype != "bfloat16");
      if (is_loaded && parameter.shard_size() > 0) files.insert(tensor.file);
    }
  }
  return files;
}

TEST(LoadFiles, ARankOpensThoseOfItsStage) {
  for (const char* dtype : {"float64", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype)});
    const Plan plan = run.plan(4, {"parallelism.pipeline_parallel_degree=2", "parallelism.tensor_parallel_degree=2"});
    const std::string checkpoint = save(run, plan);
    const Names all = tensor_files(checkpoint);
    const std::vector<Names> needed = needed_files(run, plan, checkpoint);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(needed[static_cast<size_t>(rank)], files_of_shards(plan, rank, checkpoint)) << rank;
      EXPECT_LT(needed[static_cast<size_t>(rank)].size(), all.size() * 2 / 3) << rank;
      EXPECT_GT(needed[static_cast<size_t>(rank)].size(), 0u) << rank;
    }
  }
}

// With ZeRO stage 3 a rank keeps a chunk of each layer. All ranks together open all files.
TEST(LoadFiles, ARankOpensThoseOfItsChunks) {
  const TinyRun run;
  const Plan plan = run.plan(6, {"parallelism.zero_stage=3"});
  const std::string checkpoint = save(run, plan);
  const Names all = tensor_files(checkpoint);
  Names together;
  for (const Names& needed : needed_files(run, plan, checkpoint)) {
    EXPECT_LT(needed.size(), all.size() * 2 / 3);
    together.insert(needed.begin(), needed.end());
  }
  EXPECT_EQ(together, all);
}

// Values that are not finite are refused by the rank that keeps them, and no other rank reads them.
TEST(LoadFiles, OfAModelAreReadByTheRanksThatKeepThem) {
  const TinyRun run;
  const Plan plan = run.plan(2, {"parallelism.tensor_parallel_degree=2"});
  const std::string checkpoint = save(run, plan), up = "model.layers.1.mlp.up_proj.weight";
  const Manifest manifest = read_manifest(checkpoint);
  const std::string file = checkpoint + "/" + manifest.tensors.at(up).file;
  at::Tensor values = at::ones(manifest.tensors.at(up).shape, at::kDouble);
  values[-1].fill_(NAN);
  const auto* bytes = static_cast<const std::byte*>(values.const_data_ptr());
  const TensorBytes tensor{
      .name = up, .dtype = Dtype::f64, .shape = values.sizes().vec(), .bytes = {bytes, values.nbytes()}};
  write_safetensors(file, std::span(&tensor, 1));
  for (int rank = 0; rank < 2; ++rank) {
    Weights weights(plan.parameters_of(rank), at::kDouble);
    const std::string message = message_of<DataError>([&] { load_weights(checkpoint, weights); });
    if (rank == 0) {
      EXPECT_EQ(message, "");
    } else {
      EXPECT_TRUE(says(message, {up, "not finite"}));
    }
  }
}

}  // namespace
}  // namespace orthant::load_files_test
