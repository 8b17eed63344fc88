// The optimizer's step and gradient clipping over the flat buffers of Weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/device_kernels.h"
#include "model/muon.h"
#include "model/optimizer_plan.h"
#include "model/weights.h"

namespace orthant {

class Optimizer {
 public:
  /// Keeps the state that optimizer_spec(config) lists, for the owned elements. The weights must outlive it.
  /// `orthogonalizer` is for Muon; null stands for one that requires full matrices.
  Optimizer(Weights& weights, OptimizerConfig config, std::shared_ptr<const Orthogonalizer> orthogonalizer = nullptr);

  /// Updates masters and working values of the owned elements with the gradients times gradient_scale: one number in
  /// float64 on the weights' device. If it is kSkipsUpdate, nothing changes; with Muon it must not be. `step` is the
  /// number of this update, from 1: a step of the run without an update does not count.
  void step(int64_t step, double lr, const at::Tensor& gradient_scale);
  /// The same for these parameters alone. If ranks shard matrices, they must call it with the same matrices. A matrix
  /// whose gradient is not finite on one of these ranks keeps its weights. Its momentum is then not finite, so the run
  /// must stop.
  void step(const std::vector<size_t>& parameters, int64_t step, double lr, const at::Tensor& gradient_scale);

  /// One state tensor for all parameters in its scope. `flat` has the owned elements of these, chunk after chunk.
  struct State : StateTensor {
    OwnedElements elements;
    at::Tensor flat;

    /// The owned elements of one parameter, as a view with one dim.
    at::Tensor part(size_t parameter) const;
  };
  const std::vector<State>& state() const { return state_; }
  /// True if the update of the parameter waits for other ranks.
  bool is_exchanged(size_t parameter) const;

 private:
  template <class T>
  void step_elements(size_t parameter, int64_t step, double lr, const at::Tensor& gradient_scale);
  void step_matrices(const std::vector<size_t>& matrices, double lr, const at::Tensor& gradient_scale);
  /// The momentum buffer of a matrix's owned elements.
  at::Tensor momentum_of(size_t matrix) const;
  double weight_decay_of(size_t parameter) const;

  Weights& weights_;
  OptimizerConfig config_;
  std::shared_ptr<const Orthogonalizer> orthogonalizer_;
  std::vector<State> state_;
};

/// True if no element is NaN or infinite. It reads the largest absolute value, without temporary memory.
bool all_finite(const at::Tensor& tensor);
/// Adds the squares of `count` elements from `begin` on of this rank's shard of a parameter's gradient. The rank must
/// own them. `begin` must be a multiple of kNormBlockElements; so must `count`, unless the range ends with the shard.
void add_gradient_squares(const Weights& weights, size_t parameter, int64_t begin, int64_t count, SquaresSum& sum);
}  // namespace orthant
