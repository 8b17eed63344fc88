// Forward and backward of single stages. Between the two, only the autograd graph and the stage's input are kept.
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

ModelStages::ModelStages(ModelPipeline pipeline, const Transformer& model, Weights& weights, GradientReducer* reducer,
                         ShardedStates* sharded, Comm& comm)
    : pipeline_(std::move(pipeline)),
      model_(model),
      weights_(weights),
      reducer_(reducer),
      sharded_(sharded),
      comm_(comm),
      vocabulary_(pipeline_.vocabulary.algorithm.empty()
                      ? nullptr
                      : std::make_unique<VocabularyStages>(comm, pipeline_.vocabulary, model)),
      executor_({.owners = owners_of(pipeline_.stages),
                 .send_completions = pipeline_.send_completions,
                 .stream_shape =
                     [this](int microbatch) {
                       return pipeline_.stream_shape(input_->sequences.at(static_cast<size_t>(microbatch)));
                     },
                 .stream = at::TensorOptions(weights.device()).dtype(weights.working_dtype())},
                stage_work(), comm) {
  if (sharded) {
    weights_.on_gradient = [sharded](const Weight& weight) { sharded->written(weight.index); };
  } else if (reducer) {
    weights_.on_gradient = [reducer](const Weight& weight) { reducer->written(weight.index); };
  }
}

StageWork ModelStages::stage_work() {
  StageWork work{.forward = [this](const Action& action, at::Tensor x) { return forward(action, std::move(x)); },
                 .backward = [this](const Action& action, at::Tensor dy) { return backward(action, std::move(dy)); },
                 .weight_gradients = [this](const Action& action) { weight_gradients(action); },
                 .reduce =
                     [this](const Action& action) {
                       const auto& buckets = pipeline_.buckets[static_cast<size_t>(action.stage)];
                       const int bucket = buckets[static_cast<size_t>(action.microbatch)];
                       sharded_ ? sharded_->reduce(bucket) : reducer_->finish(bucket);
                     },
                 .step =
                     [this](const Action&) {
                       if (input_->step) input_->step();
                     },
                 .finalize = [this](const Action&) { return finalize(); }};
  if (sharded_) {
    work.unshard = [this](int stage) { for_each_own_bucket(stage, [this](int b) { sharded_->unshard(b); }); };
    work.reshard = [this](int stage) { for_each_own_bucket(stage, [this](int b) { sharded_->reshard(b); }); };
  }
  if (!vocabulary_) return work;
  work.vocabulary = [this](const Action& action) { vocabulary_->carry_out(action); };
  work.wait_for = [this](const Action& action) {
    const Stage& stage = pipeline_.stages[static_cast<size_t>(action.stage)];
    const bool reads = action.kind == ActionKind::F ? stage.first : stage.last || is_vocabulary(action);
    if (reads) vocabulary_->wait_for(action);
  };
  return work;
}

void ModelStages::run(std::span<const Action> row, const StepInput& input) {
  input_ = &input;
  loss_.reset(), peak_in_flight_ = 0;
  const bool with_backward = at::GradMode::is_enabled();
  if (with_backward) begin_gradients(input);
  if (vocabulary_) begin_vocabulary(input);
  executor_.run(row, input.announce);
  ORTHANT_CHECK(live_.empty() && deferred_.empty(), live_.size(), deferred_.size());
  if (!vocabulary_) return;
  const at::Tensor loss = vocabulary_->finish();
  const bool is_last = comm_.position(kOverPipeline) == pipeline_.vocabulary.last;
  if (is_last && input.loss) input.loss(loss);
}

void ModelStages::begin_gradients(const StepInput& input) {
  const auto live = std::ranges::count_if(input.sequences, [](int64_t sequences) { return sequences > 0; });
  weights_.begin_gradients();
  if (sharded_) return sharded_->begin(live);
  reducer_->begin(live);
  if (live > 0) return;
  finalize();  // before finish_gradients(): redoing the previous step may need its gradients
  weights_.finish_gradients();
}

Microbatch ModelStages::load(const Action& forward) {
  const auto stage = static_cast<size_t>(forward.stage);
  const bool known = loaded_ && loaded_->first == forward.microbatch && pipeline_.stages[stage].continues;
  Microbatch batch = known ? loaded_->second : input_->load(forward.microbatch);
  loaded_.reset();
  const bool next_continues = stage + 1 < pipeline_.stages.size() && pipeline_.stages[stage + 1].continues;
  if (next_continues) loaded_ = {forward.microbatch, batch};
  return batch;
}

void ModelStages::for_each_own_bucket(int stage, const std::function<void(int)>& function) const {
  const auto s = static_cast<size_t>(stage);
  for (const int number : pipeline_.units.buckets[s]) function(pipeline_.buckets[s][static_cast<size_t>(number)]);
}

void ModelStages::wait_for_weights(const Action& pass) {
  if (!sharded_) return;
  for (const int unit : pipeline_.units.units_of(pass)) {
    for_each_own_bucket(unit, [this](int bucket) { sharded_->wait_for(bucket); });
  }
}

void ModelStages::allocate_gradients(const Action& pass) {
  if (!sharded_) return;
  for (const int unit : pipeline_.units.units_of(pass)) {
    for_each_own_bucket(unit, [this](int bucket) { sharded_->allocate_gradients(bucket); });
  }
}

void ModelStages::begin_vocabulary(const StepInput& input) {
  std::vector<int> microbatches;
  for (size_t m = 0; m < input.sequences.size(); ++m) {
    if (input.sequences[m] > 0) microbatches.push_back(static_cast<int>(m));
  }
  vocabulary_->begin(std::move(microbatches), input.load, input.logits);
}

bool ModelStages::finalize() {
  return input_->finalize && input_->finalize([this] {
    executor_.discard();
    live_.clear();
    loaded_.reset();
    if (sharded_) sharded_->reshard_all();
  });
}

at::Tensor ModelStages::forward(const Action& action, at::Tensor input) {
  const Stage& stage = pipeline_.stages[static_cast<size_t>(action.stage)];
  const Microbatch batch = load(action);
  const bool with_backward = at::GradMode::is_enabled();
  wait_for_weights(action);
  // The loss computes the gradient of the head.
  if (with_backward && stage.last && !vocabulary_) allocate_gradients(action);
  if (stage.first && vocabulary_) {
    input = vocabulary_->embedding(action.microbatch, pipeline_.stream_shape(batch.tokens_BT.size(0)));
  }
  Live live;
  if (input.defined()) live.input = input.requires_grad_(with_backward);
  at::Tensor x = !stage.first ? input : vocabulary_ ? model_.embedded(input, batch) : model_.embed(batch);
  for (int64_t layer = stage.layers.begin; layer < stage.layers.end; ++layer) {
    x = model_.block(static_cast<int>(layer), x, batch);
  }
  if (stage.last && vocabulary_) x = model_.final_norm(x);
  if (stage.last && !vocabulary_ && input_->logits) {
    input_->logits(model_.logits(x, batch));
  } else if (stage.last && !vocabulary_) {
    live.loss = model_.loss(x, batch);
    loss_ = loss_.defined() ? loss_ + live.loss.detach() : live.loss.detach();
    if (input_->loss) input_->loss(loss_);
  } else if (with_backward) {
    // Backward needs only the graph, so the output is not kept here: its memory is freed once it has been sent.
    live.output = torch::autograd::impl::gradient_edge(x);
  }
  if (with_backward) live_.emplace(Key{action.stage, action.microbatch}, std::move(live));
  peak_in_flight_ = std::max(peak_in_flight_, static_cast<int>(live_.size() + deferred_.size()));
  if (stage.last && vocabulary_) vocabulary_->broadcast_output(action.microbatch, x.detach());
  return stage.last ? at::Tensor() : x.detach();
}

at::Tensor ModelStages::backward(const Action& action, at::Tensor gradient) {
  const Key key{action.stage, action.microbatch};
  const Stage& stage = pipeline_.stages[static_cast<size_t>(action.stage)];
  if (stage.last && vocabulary_) {
    const int64_t sequences = input_->sequences[static_cast<size_t>(action.microbatch)];
    gradient = vocabulary_->output_gradient(action.microbatch, pipeline_.stream_shape(sequences));
  }
  auto found = live_.extract(key);
  ORTHANT_CHECK(!found.empty(), to_string(action));
  Live& live = found.mapped();
  wait_for_weights(action);
  allocate_gradients(action);
  if (action.kind == ActionKind::I) weights_.deferred = &deferred_[key];
  if (live.loss.defined()) {
    torch::autograd::backward({std::exchange(live.loss, {})}, {});
  } else {
    constexpr bool kKeepGraph = false, kCreateGraph = false, kAccumulate = true;
    torch::autograd::Engine::get_default_engine().execute({std::exchange(live.output, {})}, {gradient}, kKeepGraph,
                                                          kCreateGraph, kAccumulate);
  }
  weights_.deferred = nullptr;
  if (!live.input.defined()) return {};
  at::Tensor made = live.input.grad().contiguous();
  if (!stage.first) return made;
  vocabulary_->broadcast_embedding_gradient(action.microbatch, made);
  return {};
}

void ModelStages::weight_gradients(const Action& action) {
  auto found = deferred_.extract({action.stage, action.microbatch});
  ORTHANT_CHECK(!found.empty(), to_string(action));
  const at::NoGradGuard no_grad;
  allocate_gradients(action);
  for (std::function<void()>& product : found.mapped()) std::exchange(product, nullptr)();
}

}  // namespace orthant
