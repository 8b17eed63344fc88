// Maps between SENDs, RECVs and the tensors that they carry.
#include "runtime/stage_messages.h"

#include "base/errors.h"

namespace orthant {

void StageMessages::keep(const Action& send, at::Tensor tensor) {
  there_[matching_message(send)] = {std::move(tensor), Work()};
}

void StageMessages::leave(int place) {
  std::erase_if(leaving_, [&](Message& message) {
    const bool leaves = message.send_completion <= place;
    if (leaves) message.work.wait();
    return leaves;
  });
}

void StageMessages::send(const Action& send, int send_completion) {
  const Action received = matching_message(send);
  auto kept = there_.extract(received);
  ORTHANT_CHECK(!kept.empty(), to_string(send));
  while (leaving_.size() >= most_leaving_) {
    leaving_.front().work.wait();
    leaving_.pop_front();
  }
  Message& message = leaving_.emplace_back(std::move(kept.mapped()));
  message.send_completion = send_completion;
  message.work = comm_.send(message.tensor, kOverPipeline, owner(received.stage));
}

void StageMessages::receive(const Action& receive, at::Tensor buffer) {
  Work work = comm_.recv(buffer, kOverPipeline, owner(matching_message(receive).stage));
  there_[receive] = {std::move(buffer), std::move(work)};
}

at::Tensor StageMessages::take(const Action& receive) {
  auto coming = there_.extract(receive);
  ORTHANT_CHECK(!coming.empty(), to_string(receive));
  coming.mapped().work.wait();
  return std::move(coming.mapped().tensor);
}

void StageMessages::discard() {
  for (auto& [received, message] : there_) message.work.wait();
  there_.clear();
}

void StageMessages::finish() {
  for (Message& message : leaving_) message.work.wait();
  leaving_.clear();
  ORTHANT_CHECK(there_.empty(), there_.size());
}

}  // namespace orthant
