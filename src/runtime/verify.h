// verify: the proof, on a user's own run file, that a layout computes what one device computes.
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

/// The tensor with the largest error, |layout - oracle| / |oracle| in the Euclidean norm, over all steps and ranks. A
/// gradient smaller than what rounding leaves of one that is zero is measured against that instead (`rest`). In less
/// than float64 a bias' gradient is so against a column of its matrix'.
struct Worst {
  std::string name;
  double relative_error = 0;
  double bound = 0;
  int64_t step = 0;
  int rank = 0;
};

struct VerifyReport {
  bool ok = false;  // numbers within their bounds, and bytes sent as planned
  int64_t steps = 0;
  int64_t labels = 0;  // in all steps; without any nothing was compared, and that is not ok
  // Losses of the step with the largest relative error, the first of equal ones. Training prints the same losses for
  // this step, in the same dtype.
  int64_t loss_step = 0;
  double oracle_loss = 0, layout_loss = 0, loss_error = 0, loss_bound = 0;
  double norm_error = 0;  // of the gradient norm, bound as for gradients
  Worst gradients, weights;
  std::map<std::string, double> gradient_errors;  // by parameter, the largest of all steps and ranks
  std::string first_difference;  // empty when ok: which tensor, layer, rank and step differ first, by how much
};

/// The run of one device, step by step: the reference of every layout of the same model, data and training settings.
/// Buffers are flat; weights and moments are those after the update.
struct OracleTrace {
  std::vector<ParameterInfo> parameters;
  FlatLayout flat;
  std::vector<double> losses, norms;
  std::vector<at::Tensor> gradients, weights, first_moments, second_moments;
};

/// Told how many of the steps the oracle has done, then the layout: from 0, after each one.
using StepProgress = std::function<void(const std::string& who, int64_t done, int64_t total)>;

/// Trains one rank (the oracle) and the plan's ranks as threads of this process for some steps on the same data, and
/// compares the loss, every gradient, the norm and every updated weight on every rank. Bounds: docs/numerics.md. In
/// float32 and bfloat16 the layout starts every step from the oracle's weights and moments, and every update from its
/// gradients and norm: AdamW would amplify what rounding did to a gradient that is nearly zero. Throws Error, naming
/// the tensor, where the oracle itself is not finite: there is nothing to compare with, and no layout is to blame.
VerifyReport verify_layout(const Plan& plan, const TrainingData& data, int64_t steps,
                           Mutation mutation = Mutation::none, const StepProgress& progress = {});

/// The two halves of verify_layout(), so that one oracle serves many layouts. trace_oracle() runs the plan's model on
/// one device. verify_against() compares the plan's ranks with it over the steps of the trace; it also compares the
/// calls and bytes that each rank sends in a step with the plan, for every axis and collective.
OracleTrace trace_oracle(const Plan& plan, const TrainingData& data, int64_t steps, const StepProgress& progress = {});
VerifyReport verify_against(const OracleTrace& oracle, const Plan& plan, const TrainingData& data,
                            Mutation mutation = Mutation::none, const StepProgress& progress = {});

}  // namespace orthant
