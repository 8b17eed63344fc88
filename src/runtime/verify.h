// verify: shows on a user's own run file that a layout computes the same numbers as one device.
#pragma once

#include "plan/plan.h"
#include "runtime/session.h"
#include "runtime/training_data.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace orthant {

/// The tensor with the largest relative error of all steps and ranks: |layout - oracle| / |oracle|, in Euclidean
/// norms. The denominator of a gradient has a lower bound, so that the rounding error of a gradient that is
/// mathematically zero (RoundingBounds::rest) stays within the bound. In less than float64, the gradient of a bias has
/// another lower bound: the root mean square of the column norms of its matrix's gradient. In bfloat16, the bound of a
/// gradient is at least three times the oracle's own rounding error, but not more than 30 %. `bound` is that of this
/// tensor, and the tensor is the one with the largest error relative to its bound.
struct Worst {
  std::string name;
  double relative_error = 0;
  double bound = 0;
  int64_t step = 0;
  int rank = 0;
};

struct VerifyReport {
  bool ok = false;  // all errors are within their bounds, and bytes sent equal the plan
  int64_t steps = 0;
  // Labels in all steps. Without any label nothing is compared, and `ok` is false.
  int64_t labels = 0;
  // Losses of the step with the largest relative error, the first of equal ones. Training prints the same losses for
  // this step in the same dtype.
  int64_t loss_step = 0;
  double oracle_loss = 0, layout_loss = 0, loss_error = 0, loss_bound = 0;
  double norm_error = 0;  // of the gradient norm; its bound is loss_bound
  Worst gradients, weights;
  std::map<std::string, double> gradient_errors;  // by parameter: the largest of all steps and ranks
  // The first tensor that differs, with layer, rank, step and size of the error. Empty if nothing differs.
  std::string first_difference;
};

/// The run of one device, by step: the reference for every layout of the same model, data and training settings.
/// Gradients and weights are flat buffers. Weights and optimizer state are those after the update.
struct OracleTrace {
  std::vector<ParameterInfo> parameters;
  FlatLayout flat;
  std::vector<double> losses, norms;
  std::vector<at::Tensor> gradients, weights;
  // In bfloat16, by step and parameter: the root mean square over its elements of the rounding errors of the gradient,
  // which are its differences from the gradient in float32 from the same weights. Empty in other dtypes.
  std::vector<std::vector<double>> rounding_errors;
  // By step, then in the order of Optimizer::state(), then by parameter; undefined if it has no such state.
  std::vector<std::vector<std::vector<at::Tensor>>> optimizer_state;
};

/// Called with the number of steps done, first by the oracle, then by the layout: once with 0, then after each step.
using StepProgress = std::function<void(const std::string& who, int64_t done, int64_t total)>;

/// Trains one rank (the oracle), and the plan's ranks as threads of this process, for `steps` steps on the same data.
/// Compares the loss, the norm, every gradient and every updated weight on every rank; docs/derivations.md derives the
/// bounds. In float32 and bfloat16, the layout starts every step from the oracle's weights and optimizer state, and
/// every update from the oracle's gradients and norm. Otherwise AdamW would amplify rounding errors of gradients that
/// are nearly zero. Throws Error with the tensor's name if the oracle is not finite: the layout is then not to blame,
/// and cannot be compared.
VerifyReport verify_layout(const Plan& plan, const TrainingData& data, int64_t steps,
                           const StepProgress& progress = {});

/// Makes the parts of one rank's Session.
using PartsOf = std::function<SessionParts(const Plan& plan, Comm& comm)>;

/// The two halves of verify_layout(), so that one oracle serves many layouts. trace_oracle() runs the plan's model on
/// one device. verify_against() compares the plan's ranks with that trace, step by step. It also compares the calls and
/// bytes that each rank sends in a step with the plan, by axes and collective, unless the plan post-validates. The
/// layout's sessions are built from the parts that `parts_of` makes.
OracleTrace trace_oracle(const Plan& plan, const TrainingData& data, int64_t steps, const StepProgress& progress = {});
VerifyReport verify_against(const OracleTrace& oracle, const Plan& plan, const TrainingData& data,
                            const StepProgress& progress = {}, const PartsOf& parts_of = session_parts);

}  // namespace orthant
