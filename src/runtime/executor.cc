#include "runtime/executor.h"

#include "base/errors.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

namespace orthant {

namespace {

std::vector<int> owners_of(const std::vector<Stage>& stages) {
  std::vector<int> owners;
  for (const Stage& stage : stages) owners.push_back(stage.owner);
  return owners;
}

}  // namespace

Executor::Executor(StageTable table, const Transformer& model, Weights& weights, GradientReducer& reducer, Comm& comm)
    : table_(std::move(table)),
      model_(model),
      weights_(weights),
      reducer_(reducer),
      messages_(comm, owners_of(table_.stages)) {
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
      case ActionKind::B:
      case ActionKind::I: backward(action); break;
      case ActionKind::W: weight_gradients(action); break;
      case ActionKind::SEND_F:
      case ActionKind::SEND_B: messages_.send(action); break;
      case ActionKind::RECV_F:
      case ActionKind::RECV_B: receive(action); break;
      case ActionKind::REDUCE:
        reducer_.finish(table_.buckets[static_cast<size_t>(action.stage)][static_cast<size_t>(action.microbatch)]);
        break;
      default:
        throw LogicError("the schedule asks for an Action that this runtime does not carry out: " + to_string(action));
    }
  }
  messages_.finish();
  ORTHANT_CHECK(live_.empty() && deferred_.empty(), live_.size(), deferred_.size());
}

void Executor::receive(const Action& action) {
  const auto shape = table_.stream_shape(action.microbatch);
  if (shape.front() > 0) messages_.receive(action, at::empty(shape, weights_.values().options()));
}

void Executor::forward(const Action& action, const StepInput& input) {
  const Stage& stage = table_.stages[static_cast<size_t>(action.stage)];
  const Microbatch batch = input.load(action.microbatch);
  if (batch.tokens_BT.size(0) == 0) return;
  Live live;
  at::Tensor x;
  if (stage.first) {
    x = model_.embed(batch);
  } else {
    live.input = messages_.take({ActionKind::RECV_F, action.stage, action.microbatch}).requires_grad_();
    x = live.input;
  }
  for (int64_t layer = stage.layers.begin; layer < stage.layers.end; ++layer) {
    x = model_.block(static_cast<int>(layer), x, batch);
  }
  if (stage.last) {
    live.loss = model_.loss(x, batch);
    loss_ += live.loss.item<double>();
    if (input.loss) input.loss(loss_);
  } else {
    // Backward needs the graph alone: the output's memory ends where it is sent.
    live.output = torch::autograd::impl::gradient_edge(x);
    messages_.keep({ActionKind::SEND_F, action.stage, action.microbatch}, x.detach());
  }
  live_.emplace(Key{action.stage, action.microbatch}, std::move(live));
}

void Executor::backward(const Action& action) {
  const auto found = live_.extract({action.stage, action.microbatch});
  if (found.empty()) return;  // a microbatch without sequences
  Live& live = found.mapped();
  if (action.kind == ActionKind::I) weights_.deferred = &deferred_[{action.stage, action.microbatch}];
  if (live.loss.defined()) {
    torch::autograd::backward({std::exchange(live.loss, {})}, {});
  } else {
    const at::Tensor gradient = messages_.take({ActionKind::RECV_B, action.stage, action.microbatch});
    constexpr bool kKeepGraph = false, kCreateGraph = false, kAccumulate = true;
    torch::autograd::Engine::get_default_engine().execute({std::exchange(live.output, {})}, {gradient}, kKeepGraph,
                                                          kCreateGraph, kAccumulate);
  }
  weights_.deferred = nullptr;
  if (live.input.defined())
    messages_.keep({ActionKind::SEND_B, action.stage, action.microbatch}, live.input.grad().contiguous());
}

void Executor::weight_gradients(const Action& action) {
  auto found = deferred_.extract({action.stage, action.microbatch});
  if (found.empty()) return;
  const at::NoGradGuard no_grad;
  for (std::function<void()>& product : found.mapped()) std::exchange(product, nullptr)();
}

}  // namespace orthant
