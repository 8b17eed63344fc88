// AdamW in plain ATen operations, one parameter at a time: the oracle of the optimizer.
#pragma once

#include "model/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

namespace orthant {

/// Loshchilov and Hutter 2019, algorithm 2. Norm gains and biases (one dimension) have weight decay only on request.
struct PlainAdamW {
  OptimizerConfig config;
  std::vector<at::Tensor> m, v;  // one tensor per parameter

  void step(Weights& weights, int64_t step, double lr, double scale) {
    for (size_t p = 0; p < weights.parameters().size(); ++p) {
      at::Tensor w = weights.master(p);
      const at::Tensor g = weights.gradient(p) * scale;
      if (m.size() <= p) m.push_back(at::zeros_like(g)), v.push_back(at::zeros_like(g));
      m[p] = config.beta1 * m[p] + (1 - config.beta1) * g;
      v[p] = config.beta2 * v[p] + (1 - config.beta2) * g * g;
      const at::Tensor m_hat = m[p] / (1 - std::pow(config.beta1, step));
      const at::Tensor v_hat = v[p] / (1 - std::pow(config.beta2, step));
      const double decay = w.dim() >= 2 || config.weight_decay_on == "all" ? config.weight_decay : 0.0;
      w.copy_(w - lr * (m_hat / (v_hat.sqrt() + config.eps) + decay * w));
    }
  }
};

}  // namespace orthant
