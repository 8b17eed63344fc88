// Sends step statistics along the pipeline axis and back, and copies the state that a step changes.
#include "runtime/post_validation.h"

#include "runtime/stage_messages.h"

#include <ATen/ATen.h>

namespace orthant {

bool StepChain::ends_here() const { return comm_.position(kOverPipeline) + 1 == comm_.group_size(kOverPipeline); }

void StepChain::add_up(const at::Tensor& numbers) {
  const int own = comm_.position(kOverPipeline);
  if (own > 0) {
    const at::Tensor before = at::empty_like(numbers);
    comm_.recv(before, kOverPipeline, own - 1).wait();
    numbers.add_(before);
  }
  if (!ends_here()) tell(numbers, own + 1, ahead_);
}

void StepChain::learn(const at::Tensor& numbers) {
  const int own = comm_.position(kOverPipeline);
  if (!ends_here()) {
    ahead_.work.wait();  // no extra wait: the total comes back only after the next rank has received this
    comm_.recv(numbers, kOverPipeline, own + 1).wait();
  }
  if (own > 0) tell(numbers, own - 1, back_);
}

void StepChain::finish() {
  ahead_.work.wait();
  back_.work.wait();
}

void StepChain::tell(const at::Tensor& numbers, int position, Leaving& leaving) {
  leaving.work.wait();
  leaving.numbers = numbers.clone();
  leaving.work = comm_.send(leaving.numbers, kOverPipeline, position);
}

std::vector<at::Tensor> StepCopy::buffers() const {
  std::vector<at::Tensor> buffers = {weights_.masters()};
  for (const Optimizer::State& state : optimizer_.state()) buffers.push_back(state.flat);
  return buffers;
}

void StepCopy::keep() {
  const auto now = buffers();
  copies_.resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    if (!copies_[i].defined()) copies_[i] = at::empty_like(now[i]);
    copies_[i].copy_(now[i]);
  }
}

void StepCopy::restore() {
  const at::NoGradGuard no_grad;
  const auto now = buffers();
  for (size_t i = 0; i < now.size(); ++i) now[i].copy_(copies_[i]);
  weights_.publish();
}

}  // namespace orthant
