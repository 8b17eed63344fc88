// The oracle of training runs: one device that does not use the engine. The global batch passes through the plain
// primitives at once. Autograd computes the gradients; clipping and the optimizer are plain ATen operations per
// parameter.
#pragma once

#include "model/lr_schedule.h"
#include "model/transformer.h"
#include "tests/support/plain_optimizer.h"
#include "tests/support/tiny_run.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace orthant {

/// Returns the trace that train_ranks() must reproduce: the plan's config on one device, without microbatches. The
/// optimizer does not step in the steps `skipped`, and does not count them, as with PyTorch's GradScaler.
inline std::vector<StepTrace> train_plain(const Plan& plan, const TrainingData& data, int64_t steps,
                                          const std::vector<int64_t>& skipped = {}) {
  const Config& c = plan.config;
  Weights weights(plan.parameters, scalar_type(c.training.dtype));
  weights.initialize(static_cast<uint64_t>(c.training.seed));
  const Transformer model(plan.architecture, weights, plain_primitives(),
                          {.seed = static_cast<uint64_t>(c.training.seed),
                           .label_smoothing = c.training.label_smoothing,
                           .z_loss = c.training.z_loss});
  const LrSchedule rate{.lr = c.optimizer.lr, .steps = c.training.steps, .warmup_steps = c.lr_scheduler.warmup_steps,
                        .decay_type = c.lr_scheduler.decay_type, .decay_ratio = c.lr_scheduler.decay_ratio,
                        .min_lr_factor = c.lr_scheduler.min_lr_factor};
  PlainOptimizer optimizer{.config = c.optimizer};
  std::vector<int64_t> positions(static_cast<size_t>(c.training.seq_len));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<StepTrace> trace;
  int64_t updates = 0;
  double previous_norm = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    const int64_t size = c.training.global_batch_size;
    Microbatch batch = to_microbatch(data.train.batch((step - 1) * size, size), positions, c.data.mask_documents);
    batch.loss_scale = 1.0 / batch.labels_BT.ge(0).sum().item<double>();
    batch.step = step;
    weights.gradients().zero_();
    weights.begin_gradients();
    const at::Tensor loss = model.forward(batch);
    torch::autograd::backward({loss}, {});
    at::NoGradGuard no_grad;
    const double norm = weights.gradients().to(at::kDouble).norm().item<double>();
    trace.push_back({.loss = loss.item<double>(), .norm = norm, .gradients = weights.gradients().clone()});
    const bool by_previous = c.training.clip_by == "previous_norm";
    const double by = by_previous ? previous_norm : norm;
    const double clip = c.training.max_norm > 0 ? std::min(1.0, c.training.max_norm / (by + 1e-6)) : 1.0;
    if (std::ranges::count(skipped, step) == 0) {
      optimizer.step(weights, ++updates, rate.at(step), clip);
      weights.publish();
      previous_norm = norm;
    }
    trace.back().weights = weights.masters().clone();
  }
  return trace;
}

}  // namespace orthant
