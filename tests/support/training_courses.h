// The values that the ranks of a training have after some steps, for comparisons bit by bit. A gradient can be
// multiplied in chosen steps, so that these are clipped, skipped, or end the run.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/sharded_runs.h"
#include "tests/support/trained.h"

namespace orthant {

/// Factors for the gradient of the first matrix on one pipeline rank, by step.
struct Injection {
  int pipeline_rank = 0;
  std::vector<std::pair<int64_t, double>> factors;
};

struct FinalResult {
  double loss = 0, norm = 0;
  bool operator==(const FinalResult& other) const {
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    return same(loss, other.loss) && same(norm, other.norm);
  }
};
struct RankCourse {
  std::vector<FinalResult> results;  // by step
  at::Tensor masters, values;        // values: only owned ones, if weights are sharded
  std::vector<at::Tensor> optimizer_state;
  Traffic traffic;
  std::string not_finite;  // the tensor that was found not finite, if the run stopped
};

struct Training {
  int64_t steps = 6;
  Injection injection;
  std::string resume_from;
  bool save = false;
  int64_t finalize_every = 0;
  bool skips = false;         // steps that are not finite, instead of stopping
  bool reports_late = false;  // as on a GPU
};

/// Multiplies after the last microbatch of a row has added its gradient. `step`: the step whose row is carried out.
inline void inject(Session& session, const Plan& plan, int rank, const Injection& injection, const int64_t& step) {
  if (plan.pipeline_rank(rank) != injection.pipeline_rank || injection.factors.empty()) return;
  int64_t microbatches = 0;
  for (const Range& range : plan.data_shard(rank).microbatches) microbatches += range.size() > 0;
  const Weights& weights = session.weights();
  const auto is_matrix = [](const Weight& w) { return w.value.dim() == 2 && w.value.numel() > 0; };
  const int index = std::ranges::find_if(weights.all(), is_matrix)->index;
  session.weights().on_gradient = [=, &step, inner = weights.on_gradient,
                                   writes = int64_t{0}](const Weight& w) mutable {
    if (w.index == index && ++writes % microbatches == 0) {
      for (const auto& [injected, factor] : injection.factors)
        if (injected == step) at::Tensor(w.gradient).mul_(factor);
    }
    inner(w);
  };
}

struct NotFinite {};

/// Trains on one thread a rank, and ends at a step that is not finite unless the training skips it.
inline std::vector<RankCourse> train_on(const Plan& plan, const TrainingData& data, const Training& run) {
  std::vector<RankCourse> courses(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    RankCourse& course = courses[static_cast<size_t>(rank)];
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport, .timeout_s = 60});
    SessionParts parts = session_parts(plan, comm);
    parts.reports_late = run.reports_late;
    Session session(plan, data.train, comm, std::move(parts));
    TrainState state;
    if (run.resume_from.empty()) {
      session.weights().initialize(static_cast<uint64_t>(plan.config.training.seed));
    } else {
      state = load_snapshot(run.resume_from, plan, data, session);
    }
    int64_t of_row = 0;
    inject(session, plan, rank, run.injection, of_row);
    const auto note = [&] {
      course.masters = session.weights().masters().clone();
      const Weights& weights = session.weights();
      course.values = (plan.shards_weights() ? weights.owned_values() : weights.values()).clone();
      course.optimizer_state = copy_state(session.optimizer());
    };
    const auto on_final_result = [&](const StepResult& result) {
      EXPECT_EQ(result.step, state.step + 1);
      EXPECT_EQ(result.peak_memory_bytes, plan.mesh.size());
      state.step = result.step, state.tokens += result.tokens;
      course.results.push_back({result.loss, result.norm});
      if (result.is_finite() || run.skips) return;
      note();
      of_row = result.step;
      course.not_finite = session.find_first_not_finite(result.step).what;
      throw NotFinite();
    };
    const Traffic before = comm.total_traffic();
    try {
      for (int64_t step = state.step + 1; step <= run.steps; ++step) {
        of_row = step;
        session.advance(step, {.peak_memory_bytes = 1.0 + (rank + step) % plan.mesh.size()}, on_final_result);
        if (run.finalize_every > 0 && step % run.finalize_every == 0) session.finalize_pending_step(on_final_result);
      }
      session.finalize_pending_step(on_final_result);
      note();
      const Traffic after = comm.total_traffic();
      course.traffic = {after.calls - before.calls, after.bytes - before.bytes};
      if (run.save) SnapshotSaver(plan, data, session).save(state);
    } catch (const NotFinite&) {
    }
  });
  return courses;
}

/// All bits are the same.
inline void expect_same(const std::vector<RankCourse>& have, const std::vector<RankCourse>& want,
                        const std::string& what) {
  for (size_t rank = 0; rank < want.size(); ++rank) {
    EXPECT_EQ(have[rank].results, want[rank].results) << what << ", rank " << rank;
    EXPECT_TRUE(have[rank].masters.equal(want[rank].masters)) << what << ", rank " << rank;
    EXPECT_TRUE(have[rank].values.equal(want[rank].values)) << what << ", rank " << rank;
    EXPECT_TRUE(same_state(have[rank].optimizer_state, want[rank].optimizer_state)) << what << ", rank " << rank;
    EXPECT_EQ(have[rank].not_finite, want[rank].not_finite) << what << ", rank " << rank;
  }
}

}  // namespace orthant
