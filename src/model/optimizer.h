// The optimizer's step and gradient clipping over the flat buffers of Weights.
#pragma once

#include "base/exact_sum.h"
#include "model/optimizer_plan.h"
#include "model/weights.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

class Optimizer {
 public:
  /// Keeps the state that optimizer_spec(config) lists, for the owned elements. The weights must outlive it.
  Optimizer(Weights& weights, OptimizerConfig config);

  /// Updates masters and working values of the owned elements with the gradients times gradient_scale. `step` counts
  /// from 1.
  void step(int64_t step, double lr, double gradient_scale);
  /// The same for one parameter.
  void step_parameter(size_t parameter, int64_t step, double lr, double gradient_scale);

  /// One state tensor for all parameters in its scope. `flat` has the owned elements of these, chunk after chunk.
  struct State : StateTensor {
    OwnedElements elements;
    at::Tensor flat;

    /// The owned elements of one parameter, as a view with one dim.
    at::Tensor part(size_t parameter) const;
  };
  const std::vector<State>& state() const { return state_; }

 private:
  template <class T>
  void step_elements(size_t parameter, int64_t step, double lr, double gradient_scale);
  void step_matrix(size_t parameter, double lr, double gradient_scale);
  double weight_decay_of(size_t parameter) const;

  Weights& weights_;
  OptimizerConfig config_;
  std::vector<State> state_;
};

/// Adds the squares of `count` elements from `begin` on of this rank's shard of a parameter's gradient. The rank must
/// own them. `begin` must be a multiple of kNormBlockElements; so must `count`, unless the range ends with the shard.
void add_gradient_squares(const Weights& weights, size_t parameter, int64_t begin, int64_t count, ExactSum& sum);
/// The factor that reduces a norm to max_norm, as in torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)).
/// It is 1 when max_norm is 0.
double clip_factor(double norm, double max_norm);

}  // namespace orthant
