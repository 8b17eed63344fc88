#include "runtime/executor.h"

#include "base/errors.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace orthant {

Executor::Executor(const Transformer& model, Weights& weights, GradientReducer& reducer)
    : model_(model), weights_(weights), reducer_(reducer) {
  weights_.on_gradient = [this](const Weight& weight) { reducer_.written(weight.index); };
}

void Executor::run(std::span<const Action> row, const StepInput& input) {
  loss_ = 0;
  weights_.begin_gradients();
  reducer_.begin(input.live_microbatches);
  if (input.live_microbatches == 0) weights_.finish_gradients();
  for (size_t index = 0; index < row.size(); ++index) {
    const Action& action = row[index];
    if (input.announce) input.announce(action, index);
    switch (action.kind) {
      case ActionKind::F: forward(action, input); break;
      case ActionKind::B: backward(action); break;
      case ActionKind::REDUCE: reducer_.finish(action.microbatch); break;
      default:
        throw LogicError("the schedule asks for an Action that this runtime does not carry out: " + to_string(action));
    }
  }
  ORTHANT_CHECK(live_.empty(), live_.size());
}

void Executor::forward(const Action& action, const StepInput& input) {
  ORTHANT_CHECK(action.stage == 0, to_string(action));
  const Microbatch batch = input.load(action.microbatch);
  if (batch.tokens_BT.size(0) == 0) return;
  const at::Tensor loss = model_.forward(batch);
  loss_ += loss.item<double>();
  if (input.loss) input.loss(loss_);
  live_.emplace(std::pair{action.stage, action.microbatch}, loss);
}

void Executor::backward(const Action& action) {
  const auto found = live_.find({action.stage, action.microbatch});
  if (found == live_.end()) return;  // a microbatch without sequences
  const at::Tensor loss = std::move(found->second);
  live_.erase(found);
  torch::autograd::backward({loss}, {});
}

}  // namespace orthant
