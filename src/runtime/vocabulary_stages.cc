// Posts the collectives of the sharded vocabulary layers in the order of microbatches, which is the same on all ranks.
#include "runtime/vocabulary_stages.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "runtime/stage_messages.h"

namespace orthant {
namespace {

OutputTokens tokens_of(const Microbatch& batch) {
  return {.labels_N = batch.labels_BT.flatten(), .loss_scale = batch.loss_scale,
          .with_gradient = at::GradMode::is_enabled()};
}

}  // namespace

VocabularyStages::VocabularyStages(Comm& comm, const VocabularyEnds& ends, const Transformer& model)
    : comm_(comm),
      ends_(ends),
      model_(model),
      stream_(model.head().value.detach().options()),
      mesh_(comm, ends.tensor, ends.width),
      input_(comm, {.slice = ends.slice, .axes = kOverPipeline, .root = ends.first, .mesh = mesh_}, model.embedding()),
      output_(comm,
              {.algorithm = ends_.algorithm,
               .slice = ends.slice,
               .axes = kOverPipeline,
               .root = ends.last,
               .mesh = mesh_},
              model.head()) {}

bool VocabularyStages::is_first() const { return comm_.position(kOverPipeline) == ends_.first; }
bool VocabularyStages::is_last() const { return comm_.position(kOverPipeline) == ends_.last; }

size_t VocabularyStages::index_of(int microbatch) const {
  const auto found = std::ranges::find(microbatches_, microbatch);
  ORTHANT_CHECK(found != microbatches_.end(), microbatch);
  return static_cast<size_t>(found - microbatches_.begin());
}

void VocabularyStages::begin(std::vector<int> microbatches, std::function<Microbatch(int)> load,
                             std::function<void(const at::Tensor&)> logits) {
  microbatches_ = std::move(microbatches);
  load_ = std::move(load);
  logits_ = std::move(logits);
  outputs_posted_ = looked_up_ = gradients_posted_ = gradients_done_ = 0;
  output_.begin();
  post_output_broadcasts(1);
}

// Posts the broadcasts of the first `end` outputs. A broadcast passes from rank to rank, so each rank posts one more
// than it reads now: other ranks may be ahead.
void VocabularyStages::post_output_broadcasts(size_t end) {
  if (is_last()) return;
  for (; outputs_posted_ < std::min(end, microbatches_.size()); ++outputs_posted_) {
    const int microbatch = microbatches_[outputs_posted_];
    const Microbatch batch = load_(microbatch);
    const at::IntArrayRef all_BT = batch.tokens_BT.sizes();
    output_.broadcast_input(microbatch, at::empty(mesh_.part_shape(all_BT[0], all_BT[1]), stream_), tokens_of(batch),
                            model_.output_loss(batch));
  }
}

void VocabularyStages::post_gradient_broadcasts() {
  if (is_first()) return;
  for (; gradients_posted_ < std::min(looked_up_, gradients_done_ + 1); ++gradients_posted_) {
    input_.broadcast_gradient(microbatches_[gradients_posted_], {});
  }
}

void VocabularyStages::wait_for(const Action& action) {
  using enum ActionKind;
  const int microbatch = action.microbatch;
  switch (action.kind) {
    case S:
      post_output_broadcasts(index_of(microbatch) + 2);
      if (!is_last()) output_.wait_for_input(microbatch);
      return;
    case Z: return output_.wait_for_maxima(microbatch);
    case T:
    case TW: return output_.wait_for_softmax(microbatch);
    case B:
    case I: return output_.wait_for_input_gradient(microbatch);
    case F:
      return input_.wait_for_embedding(microbatch);
    case EB:
      return input_.wait_for_gradient(microbatch);
    default: return;
  }
}

void VocabularyStages::carry_out(const Action& action) {
  using enum ActionKind;
  const int microbatch = action.microbatch;
  const bool with_backward = at::GradMode::is_enabled();
  switch (action.kind) {
    case S: return logits_ ? logits_(output_.logits(microbatch)) : output_.S(microbatch);
    case Z: return output_.Z(microbatch);
    case T:
    case TW: return output_.T(microbatch);
    case E:
      input_.E(microbatch, load_(microbatch).tokens_BT, with_backward);
      ++looked_up_;
      if (with_backward) post_gradient_broadcasts();
      return;
    case EB:
      input_.EB(microbatch);
      ++gradients_done_;
      return post_gradient_broadcasts();
    default: throw LogicError("no Action of the vocabulary: " + to_string(action));
  }
}

at::Tensor VocabularyStages::embedding(int microbatch, at::IntArrayRef shape) {
  return input_.take_embedding(microbatch).view(shape);
}

void VocabularyStages::broadcast_embedding_gradient(int microbatch, const at::Tensor& dx) {
  input_.broadcast_gradient(microbatch, dx);
}

void VocabularyStages::broadcast_output(int microbatch, const at::Tensor& x) {
  const Microbatch batch = load_(microbatch);
  output_.broadcast_input(microbatch, x, tokens_of(batch), model_.output_loss(batch));
}

at::Tensor VocabularyStages::output_gradient(int microbatch, at::IntArrayRef shape) {
  return output_.take_input_gradient(microbatch).view(shape);
}

at::Tensor VocabularyStages::finish() {
  const at::Tensor loss = output_.finish();
  input_.finish();
  return loss;
}

}  // namespace orthant
