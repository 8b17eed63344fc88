// The optimizers in plain ATen operations, one parameter at a time: the oracle of Optimizer.
#pragma once

#include "model/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

namespace orthant {

/// AdamW by Loshchilov and Hutter 2019, algorithm 2, and SGD as torch.optim.SGD defines it. Norm gains and biases (one
/// dimension) have weight decay only on request.
struct PlainOptimizer {
  OptimizerConfig config;
  std::vector<std::vector<at::Tensor>> state = {};  // by parameter, then in the order of OptimizerSpec::state

  void step(Weights& weights, int64_t step, double lr, double scale) {
    state.resize(weights.parameters().size());
    for (size_t p = 0; p < state.size(); ++p) {
      at::Tensor w = weights.master(p);
      const at::Tensor g = weights.gradient(p) * scale;
      while (state[p].size() < optimizer_spec(config).state.size()) state[p].push_back(at::zeros_like(g));
      const bool decays = w.dim() >= 2 || config.weight_decay_on == "all";
      const double decay = decays ? config.weight_decay : 0.0;
      w.copy_(config.name == "sgd" ? sgd(w, g, state[p], lr, decay) : adamw(w, g, state[p], step, lr, decay));
    }
  }

  at::Tensor adamw(const at::Tensor& w, const at::Tensor& g, std::vector<at::Tensor>& moments, int64_t step, double lr,
                   double decay) const {
    at::Tensor &m = moments[0], &v = moments[1];
    m = config.beta1 * m + (1 - config.beta1) * g;
    v = config.beta2 * v + (1 - config.beta2) * g * g;
    const at::Tensor m_hat = m / (1 - std::pow(config.beta1, step));
    const at::Tensor v_hat = v / (1 - std::pow(config.beta2, step));
    return w - lr * (m_hat / (v_hat.sqrt() + config.eps) + decay * w);
  }

  at::Tensor sgd(const at::Tensor& w, at::Tensor g, std::vector<at::Tensor>& buffer, double lr, double decay) const {
    g = g + decay * w;
    if (!buffer.empty()) g = buffer[0] = config.momentum * buffer[0] + g;
    return w - lr * g;
  }
};

}  // namespace orthant
