// Laws of training runs that hold for every layout: validation equals one rank's, a checkpoint resumes on another
// layout, and verify accepts the layout.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/verify.h"
#include "tests/support/relative_error.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/tiny_run.h"

namespace orthant {

/// Expects one rank's validation sums on every rank of each layout.
inline void expect_validates_as_one_rank(const TinyRun& run, const std::vector<TensorCut>& cuts) {
  const Session::Validation one = validate_ranks(run.plan(1), run.data())[0];
  for (const TensorCut& cut : cuts) {
    for (const auto& have : validate_ranks(run.plan(cut.ranks, cut.keys), run.data(), 1)) {
      EXPECT_LT(relative_error(have.nats, one.nats), 1e-10) << cut.name();
      EXPECT_EQ(have.labels, one.labels) << cut.name();
      EXPECT_EQ(have.bytes, one.bytes) << cut.name();
    }
  }
}

/// Trains and saves two steps on each layout and resumes on the next for two more. Expects the weights of one rank's
/// four steps within 1e-10.
inline void expect_goes_on(const TinyRun& run, const std::vector<TensorCut>& in_turn) {
  const auto want = train_ranks(run.plan(1), run.data(), {.steps = 4})[0];
  for (size_t i = 0; i + 1 < in_turn.size(); ++i) {
    train_ranks(run.plan(in_turn[i].ranks, in_turn[i].keys), run.data(), {.steps = 2, .save = true});
    const Plan next = run.plan(in_turn[i + 1].ranks, in_turn[i + 1].keys);
    const auto have =
        train_ranks(next, run.data(), {.steps = 4, .resume_from = run.folder() + "/out/checkpoints/step-000002"});
    for (size_t rank = 0; rank < have.size(); ++rank) {
      const NamedError weight =
          worst_parameter(next, have[rank].last().weights, want.last().weights, static_cast<int>(rank));
      EXPECT_LT(weight.error, 1e-10) << weight.name << ", " << in_turn[i].name() << " then " << in_turn[i + 1].name();
    }
  }
}

inline void expect_verified(const TinyRun& run, const std::vector<TensorCut>& cuts, const std::string& what) {
  for (const TensorCut& cut : cuts) {
    const VerifyReport report = verify_layout(run.plan(cut.ranks, cut.keys), run.data(), 2);
    EXPECT_TRUE(report.ok) << what << ", " << cut.name() << ": " << report.first_difference;
  }
}

}  // namespace orthant
