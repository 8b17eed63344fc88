// Compares runs with sharded states (ZeRO) with the same runs without. Where both add gradients in the same order,
// every bit must be equal. Otherwise the results must lie within the bounds of docs/numerics.md for float64.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "plan/rounding.h"
#include "tests/support/pipelines.h"
#include "tests/support/relative_error.h"
#include "tests/support/tiny_run.h"
#include "tests/support/words.h"

namespace orthant {

/// The keys of stages 2 and 3 of ZeRO, by name.
inline const std::vector<std::pair<std::string, Words>> kStages2And3 = {
    {"stage 2", {"parallelism.zero_stage=2"}},
    {"stage 3, step", {"parallelism.zero_stage=3"}},
    {"stage 3, never", {"parallelism.zero_stage=3", "parallelism.zero_reshard=never"}},
    {"stage 3, microbatch", {"parallelism.zero_stage=3", "parallelism.zero_reshard=microbatch"}}};

/// The keys that shard the states over half of the data ranks, in two copies (HSDP).
inline const std::string kTwoCopies = "parallelism.data_parallel_replicate_degree=2";

/// True if the run adds gradients in the order of a run without sharded states: it reduces each gradient once a step,
/// and has one copy of the states.
inline bool has_the_order_of_stage_0(const Plan& plan) {
  size_t microbatches = 0;
  for (const DataShard& shard : plan.data_shards) microbatches = std::max(microbatches, shard.microbatches.size());
  const bool once = !reduces_each_microbatch(plan.config.parallelism.zero_stage, plan.reshard());
  return plan.copy_axes().empty() && (once || microbatches == 1);
}

/// Bounds on the relative difference between two runs. A gradient may also differ by `rest` times the norm of all
/// gradients.
struct RunBounds {
  double loss = 0, first_gradients = 0, gradients = 0, weights = 0, rest = 0;
};

/// The bounds for two float64 runs that add gradients in different orders. The first gradients come from equal weights,
/// so that they differ by 2 N u, where u is 2^-53. rounding_bounds() has sqrt(2 N) u. All later ones have the
/// bounds of runs that do not reset their weights.
inline RunBounds float64_bounds(const Plan& plan) {
  const RoundingBounds rounding = rounding_bounds(plan);
  return {.loss = 1e-12,
          .first_gradients = rounding.rest * rounding.rest * 0x1p53,
          .gradients = rounding.gradients,
          .weights = rounding.weights,
          .rest = rounding.rest};
}

/// Returns a description of the first gradient or weight of `have` that differs from `want` by more than the bounds
/// allow, or an empty string. Both runs have the same parameters on each rank, possibly in another order in the flat
/// buffers. Gradients come before weights, so that a wrong gradient is named, and not the weight that it changes.
inline std::string first_different_parameter(const Plan& have_plan, const std::vector<RankTrace>& have,
                                             const Plan& want_plan, const std::vector<RankTrace>& want, size_t step,
                                             const RunBounds& bounds) {
  const double gradient_bound = step == 0 ? bounds.first_gradients : bounds.gradients;
  for (const bool gradients : {true, false}) {
    for (size_t rank = 0; rank < want.size(); ++rank) {
      const StepTrace &mine = have[rank].steps[step], &other = want[rank].steps[step];
      const auto a = have_plan.parameters_of(static_cast<int>(rank)),
                 b = want_plan.parameters_of(static_cast<int>(rank));
      const FlatLayout flat_a = flat_layout(a), flat_b = flat_layout(b);
      for (size_t p = 0; p < b.size(); ++p) {
        ORTHANT_CHECK(a[p].name == b[p].name && a[p].shard_size() == b[p].shard_size(), a[p].name, b[p].name);
        const auto part = [&](const StepTrace& trace, const FlatLayout& layout) {
          const at::Tensor& flat = gradients ? trace.gradients : trace.weights;
          return flat.narrow(0, layout.parameter_offsets[p], b[p].shard_size());
        };
        const at::Tensor x = part(mine, flat_a), y = part(other, flat_b);
        // A comparison with NaN is false, so the conditions state what passes.
        const double error = relative_error(x, y);
        if (error <= (gradients ? gradient_bound : bounds.weights)) continue;
        if (gradients && bounds.rest > 0 && (x - y).norm().item<double>() <= bounds.rest * other.norm) continue;
        return fmt::format("the {} {} of step {} on rank {} differs by {:.2g}", gradients ? "gradient of" : "weight",
                           b[p].name, step + 1, rank, error);
      }
    }
  }
  return "";
}

/// The same for all results, losses and norms included.
inline std::string first_difference(const Plan& have_plan, const std::vector<RankTrace>& have, const Plan& want_plan,
                                    const std::vector<RankTrace>& want, const RunBounds& bounds) {
  for (size_t step = 0; step < want[0].steps.size(); ++step) {
    const std::string parameter = first_different_parameter(have_plan, have, want_plan, want, step, bounds);
    if (!parameter.empty()) return parameter;
    for (size_t rank = 0; rank < want.size(); ++rank) {
      const StepTrace &mine = have[rank].steps[step], &other = want[rank].steps[step];
      const double loss = relative_error(mine.loss, other.loss), norm = relative_error(mine.norm, other.norm);
      if (std::isfinite(other.loss + other.norm) && loss <= bounds.loss && norm <= bounds.loss) continue;
      return fmt::format("loss and norm of step {} on rank {} differ by {:.2g} and {:.2g}", step + 1, rank, loss, norm);
    }
  }
  return "";
}

/// The same with the bounds of the plans: equal bits, or the bounds of float64.
inline std::string first_difference_from_stage_0(const Plan& plan, const std::vector<RankTrace>& have,
                                                 const Plan& unsharded, const std::vector<RankTrace>& want) {
  return first_difference(plan, have, unsharded, want,
                          has_the_order_of_stage_0(plan) ? RunBounds{} : float64_bounds(plan));
}

/// Returns a Course::prepare under which one rank loses its gradients of a weight: after each write they are zero. The
/// weight is that of the parameter, or of its fused name.
inline auto losing_gradients(int on_rank, const std::string& weight) {
  return [=](Session& session, int rank) {
    Weights& weights = session.weights();
    if (rank != on_rank) return;
    const int lost = weights[weight].index;
    weights.on_gradient = [lost, inner = weights.on_gradient](const Weight& written) {
      if (written.index == lost) at::Tensor(written.gradient).zero_();
      inner(written);
    };
  };
}

}  // namespace orthant
