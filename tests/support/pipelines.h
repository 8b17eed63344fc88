// Run-file keys of pipelines, and comparisons of pipeline runs with other runs.
#pragma once

#include "parallel/pipeline/plan.h"
#include "tests/support/tiny_run.h"
#include "tests/support/words.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace orthant {

/// Keys of a pipeline of `ranks` ranks with this schedule.
inline Words pipeline(const std::string& schedule, int ranks, const Words& more = {}) {
  Words words = {fmt::format("parallelism.pipeline_parallel_degree={}", ranks),
                 "parallelism.pipeline_parallel_schedule=" + schedule};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Names of all schedules: first those with one stage per rank, then the others.
inline const std::vector<std::string> kEverySchedule = [] {
  std::vector<std::string> one, more;
  for (const PipelineSchedule& each : pipeline_schedules()) {
    (each.stages_per_rank == 1 ? one : more).emplace_back(each.name);
  }
  one.insert(one.end(), more.begin(), more.end());
  return one;
}();

/// As pipeline(), with the vocabulary sharded over the pipeline ranks.
inline Words cut(const std::string& order, const std::string& schedule, int ranks, Words more = {}) {
  more.push_back("parallelism.vocabulary_parallel=" + order);
  return pipeline(schedule, ranks, more);
}
inline const std::vector<std::string> kOrders = {"naive", "algorithm_1", "algorithm_2"};

/// Eight layers allow two stages on each of four ranks. With one data rank, each of the eight sequences is a
/// microbatch.
inline const Words kDeep = {"model.num_hidden_layers=8", "training.local_batch_size=1"};

/// Expects one rank's loss, norm, gradients and weights on every rank that holds them, within 1e-10, and the planned
/// traffic.
inline void expect_equal(const Plan& plan, const std::vector<RankTrace>& ranks, const RankTrace& one,
                         const std::string& what) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t step = 0; step < one.steps.size(); ++step) {
      const StepTrace &have = ranks[rank].steps[step], &want = one.steps[step];
      EXPECT_LT(std::abs(have.loss - want.loss), 1e-10 * want.loss) << what;
      EXPECT_LT(std::abs(have.norm - want.norm), 1e-10 * want.norm) << what;
      for (const auto& [of, other] : {std::pair{have.gradients, want.gradients}, {have.weights, want.weights}}) {
        const NamedError worst = worst_parameter(plan, of, other, static_cast<int>(rank));
        EXPECT_LT(worst.error, 1e-10) << what << ": " << worst.name << " on rank " << rank << ", step " << step + 1;
      }
    }
    EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank)) << what << ": rank " << rank;
  }
}

/// Joins one step's shards of all ranks in the model's order. Runs with different stage placements can then be
/// compared.
inline StepTrace put_together(const Plan& plan, const std::vector<RankTrace>& ranks, size_t step) {
  StepTrace whole{.loss = ranks[0].steps[step].loss, .norm = ranks[0].steps[step].norm};
  std::vector<at::Tensor> gradients, weights;
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    if (!plan.parameters[p].copy_of.empty()) continue;
    for (int rank = 0; rank < plan.mesh.size(); ++rank) {
      const auto held = plan.parameters_of(rank);
      if (held[p].shard_size() == 0) continue;
      const int64_t offset = flat_layout(held).parameter_offsets[p];
      const StepTrace& trace = ranks[static_cast<size_t>(rank)].steps[step];
      gradients.push_back(trace.gradients.narrow(0, offset, held[p].shard_size()));
      weights.push_back(trace.weights.narrow(0, offset, held[p].shard_size()));
    }
  }
  whole.gradients = at::cat(gradients), whole.weights = at::cat(weights);
  return whole;
}

inline void expect_same_bits(const StepTrace& have, const StepTrace& want, const std::string& what) {
  EXPECT_EQ(have.loss, want.loss) << what;
  EXPECT_EQ(have.norm, want.norm) << what;
  EXPECT_TRUE(have.gradients.equal(want.gradients)) << what;
  EXPECT_TRUE(have.weights.equal(want.weights)) << what;
}

}  // namespace orthant
