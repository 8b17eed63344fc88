// Sends step statistics along the pipeline axis and back, and copies the state that a step changes.
#include "runtime/post_validation.h"

#include <ATen/ATen.h>

#include <array>

#include "comm/ordered_sum.h"
#include "plan/plan.h"
#include "runtime/stage_messages.h"

namespace orthant {

bool StatisticsChain::is_last_rank() const {
  return comm_.position(kOverPipeline) + 1 == comm_.group_size(kOverPipeline);
}

void StatisticsChain::accumulate(const at::Tensor& statistics) {
  const int own = comm_.position(kOverPipeline);
  if (own > 0) {
    const at::Tensor before = at::empty_like(statistics);
    comm_.recv(before, kOverPipeline, own - 1).wait();
    const std::array sources{static_cast<const std::byte*>(before.const_data_ptr()),
                             static_cast<const std::byte*>(statistics.const_data_ptr())};
    ordered_sum(static_cast<std::byte*>(statistics.mutable_data_ptr()), sources, StepSignals::kElements, at::kDouble,
                StepSignals::kMaxima);
  }
  if (!is_last_rank()) send(statistics, own + 1, to_next_);
}

void StatisticsChain::receive_total(const at::Tensor& statistics) {
  const int own = comm_.position(kOverPipeline);
  if (!is_last_rank()) {
    to_next_.work.wait();  // no extra wait: the total comes back only after the next rank has received this
    comm_.recv(statistics, kOverPipeline, own + 1).wait();
  }
  if (own > 0) send(statistics, own - 1, to_previous_);
}

void StatisticsChain::wait_for_sends() {
  to_next_.work.wait();
  to_previous_.work.wait();
}

void StatisticsChain::send(const at::Tensor& statistics, int position, PendingSend& pending) {
  pending.work.wait();
  pending.statistics = statistics.clone();
  pending.work = comm_.send(pending.statistics, kOverPipeline, position);
}

std::vector<at::Tensor> OptimizerBackup::buffers() const {
  std::vector<at::Tensor> buffers = weights_.owned_masters();
  for (const Optimizer::State& state : optimizer_.state()) buffers.push_back(state.flat);
  return buffers;
}

void OptimizerBackup::save() {
  const auto now = buffers();
  copies_.resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    if (!copies_[i].defined()) copies_[i] = at::empty_like(now[i]);
    copies_[i].copy_(now[i]);
  }
}

void OptimizerBackup::restore() {
  const at::NoGradGuard no_grad;
  const auto now = buffers();
  for (size_t i = 0; i < now.size(); ++i) now[i].copy_(copies_[i]);
  weights_.publish();
}

}  // namespace orthant
