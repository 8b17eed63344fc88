#include "runtime/stage_messages.h"

#include "base/errors.h"

namespace orthant {
namespace {

const Axes kPipeline = {"pipeline"};

int reader(bool forward, int stage) { return forward ? stage + 1 : stage - 1; }

}  // namespace

void StageMessages::keep(bool forward, int stage, int microbatch, at::Tensor tensor) {
  there_[{forward, {reader(forward, stage), microbatch}}] = {std::move(tensor), Work()};
}

void StageMessages::send(const Action& action) {
  const bool forward = action.kind == ActionKind::SEND_F;
  const int to = reader(forward, action.stage);
  auto kept = there_.extract(Key{forward, {to, action.microbatch}});
  if (kept.empty()) return;  // a microbatch without sequences
  // What has left needs its memory no more.
  std::erase_if(leaving_, [](Coming& message) {
    const bool done = message.work.done();
    if (done) message.work.wait();
    return done;
  });
  Coming& message = leaving_.emplace_back(std::move(kept.mapped()));
  message.work = comm_.send(message.tensor, kPipeline, owner(to));
}

void StageMessages::receive(const Action& action, at::Tensor buffer) {
  const bool forward = action.kind == ActionKind::RECV_F;
  const int from = forward ? action.stage - 1 : action.stage + 1;
  Work work = comm_.recv(buffer, kPipeline, owner(from));
  there_[{forward, {action.stage, action.microbatch}}] = {std::move(buffer), std::move(work)};
}

at::Tensor StageMessages::take(bool forward, int stage, int microbatch) {
  auto coming = there_.extract(Key{forward, {stage, microbatch}});
  ORTHANT_CHECK(!coming.empty(), forward, stage, microbatch);
  coming.mapped().work.wait();
  return std::move(coming.mapped().tensor);
}

void StageMessages::finish() {
  for (Coming& message : leaving_) message.work.wait();
  leaving_.clear();
  ORTHANT_CHECK(there_.empty(), there_.size());
}

}  // namespace orthant
