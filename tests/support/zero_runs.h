// Layouts of runs with sharded states (ZeRO), and comparisons of their bits with those of other runs.
#pragma once

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/support/pipelines.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::zero_test {

inline const std::string kStage1 = "parallelism.zero_stage=1", kSmallBuckets = "parallelism.bucket_mib=0.004";

/// The ranks and keys of a run without ZeRO.
struct Layout {
  std::string name;
  int ranks;
  Words keys;
};

inline std::vector<Layout> layouts() {
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

/// All bytes of the newest checkpoint's tensors, by file.
inline std::map<std::string, std::string> checkpoint_bytes(const Plan& plan, int64_t step) {
  const std::string folder = fmt::format("{}/checkpoints/step-{:06}", plan.config.job.dump_folder, step);
  std::map<std::string, std::string> bytes;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") bytes[entry.path().filename()] = slurp(entry.path());
  }
  return bytes;
}

/// A run's result on each rank, and the bytes of its checkpoint.
struct Trained {
  std::vector<RankTrace> ranks;
  std::map<std::string, std::string> files;
  std::vector<std::vector<ParameterInfo>> parameters;  // by rank
};
inline Trained trained(const Plan& plan, const TinyRun& run, Course course) {
  course.save = true;
  Trained t{.ranks = train_ranks(plan, run.data(), course), .files = {}, .parameters = {}};
  t.files = checkpoint_bytes(plan, course.steps);
  for (int rank = 0; rank < plan.mesh.size(); ++rank) t.parameters.push_back(plan.parameters_of(rank));
  return t;
}

/// The name of the first parameter whose shards differ in two flat buffers, which may order the parameters differently.
inline std::string first_difference(const Trained& a, const at::Tensor& flat_a, const Trained& b,
                                    const at::Tensor& flat_b, size_t rank) {
  const auto &of_a = a.parameters[rank], &of_b = b.parameters[rank];
  const FlatLayout layout_a = flat_layout(of_a), layout_b = flat_layout(of_b);
  for (size_t p = 0; p < of_a.size(); ++p) {
    const int64_t size = of_a[p].shard_size();
    const at::Tensor in_a = flat_a.narrow(0, layout_a.parameter_offsets[p], size);
    if (!in_a.equal(flat_b.narrow(0, layout_b.parameter_offsets[p], size))) return of_a[p].name;
  }
  return "";
}

inline void expect_same_bits(const Trained& have, const Trained& want, const std::string& what) {
  for (size_t rank = 0; rank < want.ranks.size(); ++rank) {
    const auto &sharded = have.ranks[rank], &unsharded = want.ranks[rank];
    ASSERT_EQ(sharded.steps.size(), unsharded.steps.size()) << what;
    for (size_t step = 0; step < unsharded.steps.size(); ++step) {
      EXPECT_EQ(sharded.steps[step].loss, unsharded.steps[step].loss) << what << ", rank " << rank;
      EXPECT_EQ(sharded.steps[step].norm, unsharded.steps[step].norm) << what << ", rank " << rank;
      EXPECT_EQ(first_difference(have, sharded.steps[step].gradients, want, unsharded.steps[step].gradients, rank), "")
          << what << ", gradients of step " << step << ", rank " << rank;
    }
    EXPECT_EQ(first_difference(have, sharded.values, want, unsharded.values, rank), "") << what << ", rank " << rank;
  }
  EXPECT_GE(want.files.size(), want.ranks.front().optimizer_state.empty() ? 1u : 2u);  // files of weights and state
  EXPECT_TRUE(have.files == want.files) << what;
}

/// The settings of stages 2 and 3, by name.
inline const std::vector<std::pair<std::string, Words>> kStages = {
    {"stage 2", {"parallelism.zero_stage=2"}},
    {"stage 3, never", {"parallelism.zero_stage=3", "parallelism.zero_reshard=never"}},
    {"stage 3, microbatch", {"parallelism.zero_stage=3", "parallelism.zero_reshard=microbatch"}},
    {"stage 3, step", {"parallelism.zero_stage=3"}}};

inline const Words kClipped = {"training.max_norm=0.5", "training.clip_by=previous_norm"};

inline void expect_planned_traffic(const Trained& have, const Plan& plan, const std::string& what) {
  for (size_t rank = 0; rank < have.ranks.size(); ++rank) {
    EXPECT_EQ(have.ranks[rank].last().traffic, planned_traffic(plan, rank)) << what << ", rank " << rank;
  }
}

}  // namespace orthant::zero_test
