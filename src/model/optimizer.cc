#include "model/optimizer.h"

#include "model/kernels/optimizer.h"
#include "model/kernels/reduce.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace orthant {

Optimizer::Optimizer(Weights& weights, AdamWOptions options)
    : weights_(weights),
      options_(options),
      m_(at::zeros_like(weights.masters())),
      v_(at::zeros_like(weights.masters())) {}

void Optimizer::step(int64_t step, double lr, double gradient_scale) {
  at::NoGradGuard no_grad;
  auto update = [&]<class T>(T, int64_t begin, int64_t count, double decay, Bf16* rounded) {
    adamw<T>({.weights = weights_.masters().mutable_data_ptr<T>() + begin,
              .gradients = weights_.gradients().const_data_ptr<T>() + begin,
              .m = m_.mutable_data_ptr<T>() + begin,
              .v = v_.mutable_data_ptr<T>() + begin,
              .count = count,
              .lr = lr,
              .beta1 = options_.beta1,
              .beta2 = options_.beta2,
              .eps = options_.eps,
              .weight_decay = decay,
              .bias_correction1 = 1 - std::pow(options_.beta1, static_cast<double>(step)),
              .bias_correction2 = 1 - std::pow(options_.beta2, static_cast<double>(step)),
              .gradient_scale = gradient_scale,
              .bf16_weights = rounded});
  };
  const bool rounds = weights_.values().scalar_type() == at::kBFloat16;
  for (size_t i = 0; i < weights_.all().size(); ++i) {
    const auto [begin, count] = weights_.flat().weights[i];
    const double decay = weights_.all()[i].value.dim() >= 2 ? options_.weight_decay : 0.0;
    Bf16* rounded = rounds ? static_cast<Bf16*>(weights_.values().mutable_data_ptr()) + begin : nullptr;
    if (m_.scalar_type() == at::kDouble) {
      update(double{}, begin, count, decay, nullptr);
    } else {
      update(float{}, begin, count, decay, rounded);
    }
  }
}

double sum_gradient_squares(const Weights& weights, size_t parameter) {
  const at::Tensor g = weights.gradient(parameter);
  return g.scalar_type() == at::kDouble ? sum_of_squares(g.const_data_ptr<double>(), g.numel())
                                        : sum_of_squares(g.const_data_ptr<float>(), g.numel());
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace orthant
