#include "model/optimizer.h"

#include "base/errors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace orthant {
namespace {

// The owned elements of one parameter, in the buffers that a step reads and writes.
template <class T>
struct Slice {
  T* weights;
  const T* gradients;
  std::vector<T*> state;  // in the order of OptimizerSpec::state
  int64_t count, step;    // steps are counted from 1
  double lr, weight_decay;
  const double* gradient_scale;
  at::Device device;
  Bf16* rounded;  // the bfloat16 working values; null if the masters are the working values
};

template <class T>
void step_adamw(const OptimizerConfig& config, const Slice<T>& slice) {
  const auto step = static_cast<double>(slice.step);
  adamw<T>(slice.device, {.weights = slice.weights,
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
  sgd<T>(slice.device, {.weights = slice.weights,
                        .gradients = slice.gradients,
                        .momentum_buffer = slice.state.empty() ? nullptr : slice.state[0],
                        .count = slice.count,
                        .lr = slice.lr,
                        .momentum = config.momentum,
                        .weight_decay = slice.weight_decay,
                        .gradient_scale = slice.gradient_scale,
                        .bf16_weights = slice.rounded});
}

// The owned elements of the parameters that have the state tensor.
OwnedElements elements_of(const StateTensor& tensor, const Weights& weights) {
  if (tensor.scope == StateScope::every_parameter) return weights.owned();
  FlatChunks chunks;
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    const OwnedElements::Part& part = weights.owned().part(p);
    const int64_t begin = weights.flat().parameter_offsets[p] + part.begin;
    if (tensor.has(weights.parameters()[p]) && part.count > 0) chunks.emplace_back(begin, begin + part.count);
  }
  return {weights.flat(), weights.parameters(), std::move(chunks)};
}

// The elementwise update rules, by name of the optimizer. With Muon, AdamW updates all but the hidden matrices.
template <class T>
void step_slice(const OptimizerConfig& config, const Slice<T>& slice) {
  if (config.name == "adamw" || config.name == "muon") return step_adamw(config, slice);
  if (config.name == "sgd") return step_sgd(config, slice);
  ORTHANT_CHECK(false, config.name);
}

}  // namespace

Optimizer::Optimizer(Weights& weights, OptimizerConfig config, std::shared_ptr<const Orthogonalizer> orthogonalizer)
    : weights_(weights),
      config_(std::move(config)),
      orthogonalizer_(orthogonalizer ? std::move(orthogonalizer) : std::make_shared<const Orthogonalizer>()) {
  for (const StateTensor& tensor : optimizer_spec(config_).state) {
    OwnedElements elements = elements_of(tensor, weights);
    const at::Tensor zeros = at::zeros({elements.elements()}, weights.masters().options());
    state_.push_back({tensor, std::move(elements), zeros});
  }
}

at::Tensor Optimizer::State::part(size_t parameter) const {
  const OwnedElements::Part& part = elements.part(parameter);
  return flat.narrow(0, part.offset, part.count);
}

void Optimizer::step(int64_t step, double lr, const at::Tensor& gradient_scale) {
  std::vector<size_t> all(weights_.parameters().size());
  std::iota(all.begin(), all.end(), size_t{0});
  this->step(all, step, lr, gradient_scale);
}

void Optimizer::step(const std::vector<size_t>& parameters, int64_t step, double lr, const at::Tensor& gradient_scale) {
  const at::NoGradGuard no_grad;
  std::vector<size_t> matrices;
  for (const size_t parameter : parameters) {
    if (weights_.owned().part(parameter).count == 0) continue;
    if (is_updated_as_matrix(config_, weights_.parameters()[parameter])) {
      matrices.push_back(parameter);
    } else if (weights_.masters().scalar_type() == at::kDouble) {
      step_elements<double>(parameter, step, lr, gradient_scale);
    } else {
      step_elements<float>(parameter, step, lr, gradient_scale);
    }
  }
  step_matrices(matrices, lr, gradient_scale);
}

double Optimizer::weight_decay_of(size_t parameter) const {
  return has_weight_decay(config_, weights_.parameters()[parameter]) ? config_.weight_decay : 0.0;
}

template <class T>
void Optimizer::step_elements(size_t parameter, int64_t step, double lr, const at::Tensor& gradient_scale) {
  const at::Tensor rounded = weights_.owned_value(parameter);
  const bool rounds = rounded.scalar_type() == at::kBFloat16;
  std::vector<T*> state;
  for (const State& each : state_) {
    if (!each.has(weights_.parameters()[parameter])) continue;
    state.push_back(each.part(parameter).template mutable_data_ptr<T>());
  }
  step_slice<T>(config_, {.weights = weights_.owned_master(parameter).mutable_data_ptr<T>(),
                          .gradients = weights_.owned_gradient(parameter).const_data_ptr<T>(),
                          .state = std::move(state),
                          .count = rounded.numel(),
                          .step = step,
                          .lr = lr,
                          .weight_decay = weight_decay_of(parameter),
                          .gradient_scale = gradient_scale.const_data_ptr<double>(),
                          .device = rounded.device(),
                          .rounded = rounds ? static_cast<Bf16*>(rounded.mutable_data_ptr()) : nullptr});
}

void Optimizer::step_matrices(const std::vector<size_t>& matrices, double lr, const at::Tensor& gradient_scale) {
  for (const MatrixRound& round : orthogonalizer_->rounds(matrices)) {
    std::vector<at::Tensor> shards;
    for (const size_t matrix : round) {
      const ParameterInfo& info = weights_.parameters()[matrix];
      const at::Tensor gradient = weights_.owned_gradient(matrix);
      ORTHANT_CHECK(gradient.numel() == info.shard_size(), info.name, gradient.numel(), info.shard_size());
      const at::Tensor shard = muon_momentum(gradient, momentum_of(matrix), config_.momentum, gradient_scale);
      shards.push_back(shard.view(info.shard_shape()));
    }
    const std::vector<at::Tensor> updates = orthogonalizer_->orthogonalized(round, std::move(shards));
    for (size_t i = 0; i < round.size(); ++i) {
      const at::Tensor master = weights_.owned_master(round[i]);
      // An update in backward takes part in the exchange also after a gradient that is not finite, but applies nothing.
      if (config_.in_backward && !all_finite(updates[i])) continue;
      const int64_t larger_side = std::ranges::max(weights_.parameters()[round[i]].shape);
      apply_muon(master.view(updates[i].sizes()), updates[i], larger_side, lr, weight_decay_of(round[i]));
      if (weights_.working_dtype() != master.scalar_type()) weights_.owned_value(round[i]).copy_(master);
    }
  }
}

bool Optimizer::is_exchanged(size_t parameter) const {
  return orthogonalizer_->exchanges() && is_updated_as_matrix(config_, weights_.parameters()[parameter]);
}

at::Tensor Optimizer::momentum_of(size_t matrix) const {
  const ParameterInfo& info = weights_.parameters()[matrix];
  const auto state = std::ranges::find_if(state_, [&](const State& each) { return each.has(info); });
  return state->part(matrix);
}

bool all_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  return std::isfinite(at::linalg_vector_norm(tensor, std::numeric_limits<double>::infinity()).item<double>());
}

void add_gradient_squares(const Weights& weights, size_t parameter, int64_t begin, int64_t count, SquaresSum& sum) {
  if (count == 0) return;
  const OwnedElements::Part& owned = weights.owned().part(parameter);
  ORTHANT_CHECK(owned.begin <= begin && begin + count <= owned.begin + owned.count, begin, count, owned.begin,
                owned.count);
  sum.add(weights.owned_gradient(parameter).narrow(0, begin - owned.begin, count));
}

}  // namespace orthant
