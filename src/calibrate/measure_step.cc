#include "calibrate/measure_step.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "calibrate/on_all_cores.h"
#include "model/optimizer.h"
#include "model/transformer.h"

namespace orthant {
namespace {

Microbatch make_microbatch(const StepWork& work) {
  Microbatch batch;
  const at::Tensor positions = at::arange(work.tokens).unsqueeze(0);
  batch.tokens_BT = positions.remainder(work.model.vocab_size);
  batch.labels_BT = batch.tokens_BT.flip({1});
  batch.positions_BT = positions.contiguous();
  batch.samples_B = at::zeros({1}, at::kLong);
  batch.loss_scale = 1 / static_cast<double>(work.tokens * work.microbatches);
  batch.sequence_length = work.tokens;
  batch.step = 1;
  return batch;
}

}  // namespace

double measure_step(const StepWork& work, int64_t cores, double seconds) {
  return time_on_all_cores(cores, seconds, 0, [&]() -> std::function<void()> {
    const auto dtype = work.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
    const auto weights = std::make_shared<Weights>(parameter_table(work.model), dtype);
    weights->initialize(1);
    const auto model = std::make_shared<Transformer>(work.model, *weights, fused_primitives(), Transformer::Options());
    const auto optimizer = std::make_shared<Optimizer>(*weights, OptimizerConfig());
    return [=, batch = make_microbatch(work), microbatches = work.microbatches] {
      weights->begin_gradients();
      for (int64_t i = 0; i < microbatches; ++i) torch::autograd::backward({model->forward(batch)}, {});
      weights->finish_gradients();
      ExactSum squares;
      for (size_t parameter = 0; parameter < weights->parameters().size(); ++parameter) {
        add_gradient_squares(*weights, parameter, 0, weights->parameters()[parameter].size(), squares);
      }
      optimizer->step(1, 1e-3, 1.0);
      weights->publish();
    };
  });
}

}  // namespace orthant
