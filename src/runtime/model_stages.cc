#include "runtime/model_stages.h"

#include "base/errors.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace orthant {

namespace {

std::vector<int> owners_of(const std::vector<Stage>& stages) {
  std::vector<int> owners;
  for (const Stage& stage : stages) owners.push_back(stage.owner);
  return owners;
}

}  // namespace

ModelStages::ModelStages(ModelPipeline pipeline, const Transformer& model, Weights& weights, GradientReducer& reducer,
                         Comm& comm)
    : pipeline_(std::move(pipeline)),
      model_(model),
      weights_(weights),
      reducer_(reducer),
      executor_({.owners = owners_of(pipeline_.stages),
                 .stream_shape =
                     [this](int microbatch) {
                       return pipeline_.stream_shape(input_->sequences.at(static_cast<size_t>(microbatch)));
                     },
                 .stream = weights.values().options()},
                {.forward = [this](const Action& action, at::Tensor x) { return forward(action, std::move(x)); },
                 .backward = [this](const Action& action, const at::Tensor& dy) { return backward(action, dy); },
                 .weight_gradients = [this](const Action& action) { weight_gradients(action); },
                 .reduce =
                     [this](const Action& action) {
                       const auto& buckets = pipeline_.buckets[static_cast<size_t>(action.stage)];
                       reducer_.finish(buckets[static_cast<size_t>(action.microbatch)]);
                     }},
                comm) {
  weights_.on_gradient = [&reducer](const Weight& weight) { reducer.written(weight.index); };
}

void ModelStages::run(std::span<const Action> row, const StepInput& input) {
  input_ = &input;
  loss_ = 0, peak_live_ = 0;
  if (at::GradMode::is_enabled()) {
    const auto live = std::ranges::count_if(input.sequences, [](int64_t sequences) { return sequences > 0; });
    weights_.begin_gradients();
    reducer_.begin(live);
    if (live == 0) weights_.finish_gradients();
  }
  executor_.run(row, input.announce);
  ORTHANT_CHECK(live_.empty() && deferred_.empty(), live_.size(), deferred_.size());
}

at::Tensor ModelStages::forward(const Action& action, at::Tensor input) {
  const Stage& stage = pipeline_.stages[static_cast<size_t>(action.stage)];
  const Microbatch batch = input_->load(action.microbatch);
  const bool learns = at::GradMode::is_enabled();
  at::Tensor x = stage.first ? model_.embed(batch) : input.requires_grad_(learns);
  Live live;
  if (!stage.first) live.input = x;
  for (int64_t layer = stage.layers.begin; layer < stage.layers.end; ++layer) {
    x = model_.block(static_cast<int>(layer), x, batch);
  }
  if (stage.last) {
    live.loss = model_.loss(x, batch);
    loss_ += live.loss.item<double>();
    if (input_->loss) input_->loss(loss_);
  } else if (learns) {
    // Backward needs the graph alone: the output's memory ends where it is sent.
    live.output = torch::autograd::impl::gradient_edge(x);
  }
  if (learns) live_.emplace(Key{action.stage, action.microbatch}, std::move(live));
  peak_live_ = std::max(peak_live_, static_cast<int>(live_.size() + deferred_.size()));
  if (stage.last) return {};
  at::Tensor output = x.detach();
  if (!late_) return output;
  std::swap(output, last_[action.stage]);
  return output.defined() && output.sizes() == x.sizes() ? output : x.detach();
}

at::Tensor ModelStages::backward(const Action& action, const at::Tensor& gradient) {
  const Key key{action.stage, action.microbatch};
  auto found = live_.extract(key);
  ORTHANT_CHECK(!found.empty(), to_string(action));
  Live& live = found.mapped();
  if (action.kind == ActionKind::I) weights_.deferred = &deferred_[key];
  if (live.loss.defined()) {
    torch::autograd::backward({std::exchange(live.loss, {})}, {});
  } else {
    constexpr bool kKeepGraph = false, kCreateGraph = false, kAccumulate = true;
    torch::autograd::Engine::get_default_engine().execute({std::exchange(live.output, {})}, {gradient}, kKeepGraph,
                                                          kCreateGraph, kAccumulate);
  }
  weights_.deferred = nullptr;
  return live.input.defined() ? live.input.grad().contiguous() : at::Tensor();
}

void ModelStages::weight_gradients(const Action& action) {
  auto found = deferred_.extract({action.stage, action.microbatch});
  if (found.empty()) return;
  if (dropped_ && action.microbatch == 0) return;
  const at::NoGradGuard no_grad;
  for (std::function<void()>& product : found.mapped()) std::exchange(product, nullptr)();
}

}  // namespace orthant
