// The first steps of a run as another engine computed them, in a file: `orthant verify --reference`.
//
// The file has the format of safetensors. For step N, from 1 on, it holds
//   step_N.tokens, step_N.labels   [B, T], int64: the global batch; a label of -100 carries no loss
//   step_N.positions               [B, T], int64: with masked documents, the position of each token in its document
//   step_N.learning_rate           [1]
//   step_N.loss                    [1]: mean cross-entropy of all labels
//   step_N.gradient_norm           [1]: before clipping
//   step_1.gradient.NAME           the gradient of the mean loss, by the names and shapes of the model's own files
// and as metadata `dtype`, in which the engine computed, and `run_file`, the settings of the run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/verify.h"

namespace orthant {

/// Writes what one device computed, with the gradients of the first step. Replaces the file.
void write_reference(const std::string& file, const OracleTrace& trace, const Plan& plan, const TrainingData& data);

struct ReferenceStep {
  double own_loss = 0, other_loss = 0, loss_error = 0;
  double own_norm = 0, other_norm = 0, norm_error = 0;  // zeros if the file has no norm
};

struct ReferenceReport {
  bool ok = false;
  std::string dtype;                 // of the other engine
  double bound = 0;                  // of relative errors
  int64_t bounded_steps = 0;         // the first steps, for which the bound holds
  std::vector<ReferenceStep> steps;
  int64_t gradients = 0;             // number of gradients that were compared
  int64_t own_gradients = 0;         // number of gradients of the model
  Worst worst_gradient;
  std::string first_difference;      // empty if nothing differs
};

/// Number of steps in the file. Throws DataError if there is none.
int64_t reference_steps(const std::string& file);

/// Compares the file with the same steps of one device. Its losses are required, and its other tensors are optional. In
/// less than float64, the bound holds for the first step only, because updates of AdamW amplify roundings of gradients
/// that are nearly zero. Throws DataError if the file is damaged, has other tokens or labels, or has gradients that the
/// model does not have.
ReferenceReport compare_reference(const std::string& file, const OracleTrace& trace, const Plan& plan,
                                  const TrainingData& data);

}  // namespace orthant
