#include "model/optimizer.h"

#include "base/errors.h"
#include "model/kernels/optimizer.h"
#include "model/kernels/reduce.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace orthant {
namespace {

// The owned elements of one parameter, in the buffers that a step reads and writes.
template <class T>
struct Slice {
  T* weights;
  const T* gradients;
  std::vector<T*> state;  // in the order of OptimizerSpec::state
  int64_t count, step;    // steps are counted from 1
  double lr, weight_decay, gradient_scale;
  Bf16* rounded;  // the bfloat16 working values; null if the masters are the working values
};

template <class T>
void step_adamw(const OptimizerConfig& config, const Slice<T>& slice) {
  const auto step = static_cast<double>(slice.step);
  adamw<T>({.weights = slice.weights,
            .gradients = slice.gradients,
            .m = slice.state[0],
            .v = slice.state[1],
            .count = slice.count,
            .lr = slice.lr,
            .beta1 = config.beta1,
            .beta2 = config.beta2,
            .eps = config.eps,
            .weight_decay = slice.weight_decay,
            .bias_correction1 = 1 - std::pow(config.beta1, step),
            .bias_correction2 = 1 - std::pow(config.beta2, step),
            .gradient_scale = slice.gradient_scale,
            .bf16_weights = slice.rounded});
}

template <class T>
void step_sgd(const OptimizerConfig& config, const Slice<T>& slice) {
  sgd<T>({.weights = slice.weights,
          .gradients = slice.gradients,
          .momentum_buffer = slice.state.empty() ? nullptr : slice.state[0],
          .count = slice.count,
          .lr = slice.lr,
          .momentum = config.momentum,
          .weight_decay = slice.weight_decay,
          .gradient_scale = slice.gradient_scale,
          .bf16_weights = slice.rounded});
}

// The buffer of a state tensor of all parameters.
at::Tensor zeros_for(const StateTensor& tensor, const Weights& weights) {
  switch (tensor.shape) {
    case StateShape::like_parameter: break;
  }
  switch (tensor.dtype) {
    case StateDtype::like_master: return at::zeros({weights.owned().elements()}, weights.masters().options());
  }
  throw LogicError("a state tensor without a dtype: " + tensor.name);
}

// The update rules, by name of the optimizer.
template <class T>
void step_slice(const OptimizerConfig& config, const Slice<T>& slice) {
  if (config.name == "adamw") return step_adamw(config, slice);
  if (config.name == "sgd") return step_sgd(config, slice);
  ORTHANT_CHECK(false, config.name);
}

}  // namespace

Optimizer::Optimizer(Weights& weights, OptimizerConfig config) : weights_(weights), config_(std::move(config)) {
  for (const StateTensor& tensor : optimizer_spec(config_).state) {
    state_.push_back({tensor.name, zeros_for(tensor, weights)});
  }
}

void Optimizer::step(int64_t step, double lr, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const bool is_double = weights_.masters().scalar_type() == at::kDouble;
  for (size_t parameter = 0; parameter < weights_.parameters().size(); ++parameter) {
    if (is_double) step_parameter<double>(parameter, step, lr, gradient_scale);
    if (!is_double) step_parameter<float>(parameter, step, lr, gradient_scale);
  }
}

template <class T>
void Optimizer::step_parameter(size_t parameter, int64_t step, double lr, double gradient_scale) {
  const OwnedElements::Part& part = weights_.owned().part(parameter);
  if (part.count == 0) return;
  const int64_t begin = weights_.flat().parameter_offsets[parameter] + part.begin;
  const bool decays = has_weight_decay(config_, weights_.parameters()[parameter]);
  const bool rounds = weights_.values().scalar_type() == at::kBFloat16;
  std::vector<T*> state;
  for (const State& each : state_) state.push_back(each.flat.mutable_data_ptr<T>() + part.offset);
  step_slice<T>(config_,
                {.weights = weights_.owned_master(parameter).mutable_data_ptr<T>(),
                 .gradients = weights_.gradients().const_data_ptr<T>() + begin,
                 .state = std::move(state),
                 .count = part.count,
                 .step = step,
                 .lr = lr,
                 .weight_decay = decays ? config_.weight_decay : 0.0,
                 .gradient_scale = gradient_scale,
                 .rounded = rounds ? static_cast<Bf16*>(weights_.values().mutable_data_ptr()) + begin : nullptr});
}

void add_gradient_squares(const Weights& weights, size_t parameter, int64_t begin, int64_t count, ExactSum& sum) {
  const at::Tensor g = weights.gradient(parameter).view(-1).narrow(0, begin, count);
  if (g.scalar_type() == at::kDouble) add_squares(g.const_data_ptr<double>(), count, sum);
  if (g.scalar_type() == at::kFloat) add_squares(g.const_data_ptr<float>(), count, sum);
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace orthant
