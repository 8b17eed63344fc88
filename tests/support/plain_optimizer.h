// The optimizers in plain ATen operations, one parameter at a time: the oracle of Optimizer.
#pragma once

#include "model/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

namespace orthant {

/// AdamW by Loshchilov and Hutter 2019, algorithm 2, SGD as torch.optim.SGD defines it, and Muon with the polynomial of
/// each Newton-Schulz iteration applied to the singular values. Norm gains and biases (one dimension) have weight decay
/// only on request.
struct PlainOptimizer {
  OptimizerConfig config;
  std::vector<std::vector<at::Tensor>> state = {};  // by parameter, then in the order of OptimizerSpec::state

  void step(Weights& weights, int64_t step, double lr, double scale) {
    state.resize(weights.parameters().size());
    for (size_t p = 0; p < state.size(); ++p) {
      at::Tensor w = weights.master(p);
      const at::Tensor g = weights.gradient(p) * scale;
      const bool orthogonalizes = config.name == "muon" && is_hidden_matrix(weights.parameters()[p]);
      const size_t tensors = orthogonalizes ? 1 : config.name == "muon" ? 2 : optimizer_spec(config).state.size();
      while (state[p].size() < tensors) state[p].push_back(at::zeros_like(g));
      const bool decays = w.dim() >= 2 || config.weight_decay_on == "all";
      const double decay = decays ? config.weight_decay : 0.0;
      w.copy_(orthogonalizes         ? muon(w, g, state[p], lr, decay)
              : config.name == "sgd" ? sgd(w, g, state[p], lr, decay)
                                     : adamw(w, g, state[p], step, lr, decay));
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

  at::Tensor muon(const at::Tensor& w, const at::Tensor& g, std::vector<at::Tensor>& buffer, double lr,
                  double decay) const {
    at::Tensor& b = buffer[0];
    b = config.momentum * b + (1 - config.momentum) * g;
    const at::Tensor update = ((1 - config.momentum) * g + config.momentum * b).to(at::kDouble);
    auto [U, S, V] = at::linalg_svd(update, /*full_matrices=*/false);
    at::Tensor s = S / S.square().sum().sqrt();
    for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s.pow(3) + 2.0315 * s.pow(5);
    const double larger = static_cast<double>(std::max(w.size(0), w.size(1)));
    return w - lr * (0.2 * std::sqrt(larger) * U.mm(at::diag(s)).mm(V).to(w.scalar_type()) + decay * w);
  }

  at::Tensor sgd(const at::Tensor& w, at::Tensor g, std::vector<at::Tensor>& buffer, double lr, double decay) const {
    g = g + decay * w;
    if (!buffer.empty()) g = buffer[0] = config.momentum * buffer[0] + g;
    return w - lr * g;
  }
};

}  // namespace orthant
