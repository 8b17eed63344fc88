// Maps between SENDs, RECVs and the tensors that they carry.
#include "runtime/stage_messages.h"

#include "base/errors.h"

namespace orthant {

void StageMessages::keep(const Action& send, at::Tensor tensor) {
  unread_[matching_message(send)] = {std::move(tensor), Work()};
}

void StageMessages::complete_sends(int row_index) {
  std::erase_if(incomplete_sends_, [&](Message& message) {
    const bool leaves = message.send_completion <= row_index;
    if (leaves) message.work.wait();
    return leaves;
  });
}

void StageMessages::send(const Action& send, int send_completion) {
  const Action received = matching_message(send);
  auto kept = unread_.extract(received);
  ORTHANT_CHECK(!kept.empty(), to_string(send));
  while (incomplete_sends_.size() >= max_incomplete_sends_) {
    incomplete_sends_.front().work.wait();
    incomplete_sends_.pop_front();
  }
  Message& message = incomplete_sends_.emplace_back(std::move(kept.mapped()));
  message.send_completion = send_completion;
  message.work = comm_.send(message.tensor, kOverPipeline, owner(received.stage));
}

void StageMessages::receive(const Action& receive, at::Tensor buffer) {
  Work work = comm_.recv(buffer, kOverPipeline, owner(matching_message(receive).stage));
  unread_[receive] = {std::move(buffer), std::move(work)};
}

at::Tensor StageMessages::take(const Action& receive) {
  auto coming = unread_.extract(receive);
  ORTHANT_CHECK(!coming.empty(), to_string(receive));
  coming.mapped().work.wait();
  return std::move(coming.mapped().tensor);
}

void StageMessages::discard() {
  for (auto& [received, message] : unread_) message.work.wait();
  unread_.clear();
}

void StageMessages::finish() {
  for (Message& message : incomplete_sends_) message.work.wait();
  incomplete_sends_.clear();
  ORTHANT_CHECK(unread_.empty(), unread_.size());
}

}  // namespace orthant
