#include "parallel/vocabulary/output.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "model/linear.h"
#include "model/loss.h"
#include "parallel/vocabulary/channels_plan.h"

namespace orthant {

OutputLayer::OutputLayer(Comm& comm, OutputPlan plan, const Weight& head)
    : comm_(comm),
      plan_(std::move(plan)),
      naive_(vocabulary_algorithm(plan_.algorithm).rounds() == 2),
      early_(vocabulary_algorithm(plan_.algorithm).early()),
      head_(head),
      inputs_(comm.channel(kOutputInputChannel)),
      statistics_(comm.channel(kStatisticsChannel)),
      exponentials_(comm.channel(kExponentialsChannel)),
      gradients_(comm.channel(kOutputGradientChannel)) {}

OutputLayer::Live& OutputLayer::live(int microbatch) {
  const auto found = live_.find(microbatch);
  ORTHANT_CHECK(found != live_.end(), microbatch);
  return *found->second;
}

bool OutputLayer::at_root() const { return comm_.position(plan_.axes) == plan_.root; }

void OutputLayer::broadcast_input(int microbatch, at::Tensor x, OutputTokens tokens, OutputLoss loss) {
  sweep();
  const auto [place, fresh] = live_.try_emplace(microbatch);
  ORTHANT_CHECK(fresh, microbatch);
  place->second = std::make_shared<Live>();
  Live& one = *place->second;
  one.x = x.detach();
  one.tokens = std::move(tokens);
  one.loss = loss;
  one.input_arrives = inputs_.broadcast(one.x, plan_.axes, plan_.root);
}

void OutputLayer::gather(Live& one, Comm& channel, at::Tensor own) {
  one.own = std::move(own);
  one.all = at::empty({comm_.group_size(plan_.axes), one.own.size(0), one.own.size(1)}, one.own.options());
  one.statistics_arrive = channel.all_gather(one.all, one.own, plan_.axes);
}

void OutputLayer::S(int microbatch) {
  const at::NoGradGuard no_grad;
  Live& one = live(microbatch);
  if (!at_root()) one.input_arrives.wait();  // the root has x before the broadcast ends
  OutputShard& shard = one.shard.emplace(plan_.slice, one.loss, head_, std::move(one.x), one.tokens, plan_.mesh);
  gather(one, statistics_, naive_ ? shard.maxima().unsqueeze(0) : shard.statistics());
  if (early_ && one.tokens.with_gradient) {
    one.dx = shard.multiply();
    const auto make = [kept = live_.at(microbatch), vocabulary = plan_.slice.vocabulary] { kept->combine(vocabulary); };
    one.dx_arrives = gradients_.reduce_in_chunks(one.dx, plan_.axes, plan_.root, one.statistics_arrive, make);
  }
  shard.free_weight();
  if (!naive_ && !one.tokens.with_gradient) one.shard.reset();
}

void OutputLayer::Z(int microbatch) {
  const at::NoGradGuard no_grad;
  Live& one = live(microbatch);
  ORTHANT_CHECK(naive_);
  one.statistics_arrive.wait();
  one.maximum = one.all.amax(0).squeeze(0);
  gather(one, exponentials_, one.shard->exponentials(one.maximum));
}

void OutputLayer::Live::combine(int64_t vocabulary) {
  std::call_once(combined, [&] {
    try {
      const at::NoGradGuard no_grad;
      const at::Tensor all_statistics =
          maximum.defined() ? at::cat({maximum.expand({all.size(0), 1, -1}), all}, 1) : all;
      softmax = compute_full_softmax(all_statistics, loss, vocabulary, tokens);
      if (shard && shard->multiplied()) shard->input_gradient(softmax, dx);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

void OutputLayer::wait_for_softmax(int microbatch) {
  Live& one = live(microbatch);
  if (!one.all.defined()) {  // an earlier call has waited
    ORTHANT_CHECK(one.softmax.losses_N.defined(), microbatch);
    return;
  }
  one.statistics_arrive.wait();
  one.combine(plan_.slice.vocabulary);
  losses_[microbatch] = one.softmax.losses_N.sum();
  one.own.reset(), one.all.reset(), one.maximum.reset();
  if (one.tokens.with_gradient) return;
  one.shard.reset(), one.done = true;
}

void OutputLayer::T(int microbatch) {
  const at::NoGradGuard no_grad;
  wait_for_softmax(microbatch);
  Live& one = live(microbatch);
  const at::Tensor dx = one.shard->gradients(one.softmax);
  one.shard.reset();
  one.done = true;
  if (!early_) {
    one.dx = dx;
    one.dx_arrives = gradients_.reduce_in_chunks(one.dx, plan_.axes, plan_.root);
  }
  sweep();
}

at::Tensor OutputLayer::logits(int microbatch) {
  const at::NoGradGuard no_grad;
  Live& one = live(microbatch);
  one.input_arrives.wait();
  const at::Tensor rows = labeled_rows(plan_.mesh.gather(one.x), one.tokens.labels_N);
  const at::Tensor own = matrix_product(rows, plan_.mesh.gather_weight(head_).t());
  const at::Tensor all = plan_.mesh.gather_logits(statistics_, own, plan_.axes, plan_.slice.vocabulary);
  const double cap = one.loss.softcap;
  live_.erase(microbatch);
  return apply_softcap(all, cap);
}

void OutputLayer::wait_for_input_gradient(int microbatch) {
  Live& one = live(microbatch);
  ORTHANT_CHECK(at_root(), plan_.root);
  ORTHANT_CHECK(one.dx.defined(), microbatch);
  one.dx_arrives.wait();
}

at::Tensor OutputLayer::take_input_gradient(int microbatch) {
  wait_for_input_gradient(microbatch);
  return std::exchange(live(microbatch).dx, {});
}

// Erases microbatches that are done: their messages have ended and, at the root, their gradient of x is taken. Those
// without gradient are done when their statistics have arrived.
void OutputLayer::sweep() {
  for (auto at = live_.begin(); at != live_.end();) {
    const int microbatch = at->first;
    Live& one = *at->second;
    const bool has_all_statistics =
        one.all.defined() && (!naive_ || one.maximum.defined()) && one.statistics_arrive.done();
    if (has_all_statistics && !one.tokens.with_gradient) wait_for_softmax(microbatch);
    const bool taken = !(at_root() && one.dx.defined());
    const bool over = one.done && taken && one.dx_arrives.done() && one.input_arrives.done();
    if (over) one.dx_arrives.wait(), one.input_arrives.wait();
    at = over ? live_.erase(at) : std::next(at);
  }
}

at::Tensor OutputLayer::finish() {
  for (auto& [microbatch, one] : live_) {
    wait_for_softmax(microbatch);
    one->input_arrives.wait();
    if (!at_root()) one->dx_arrives.wait();
  }
  sweep();
  ORTHANT_CHECK(live_.empty(), live_.size(), live_.begin()->first);
  at::Tensor sum;
  for (const auto& [microbatch, loss] : losses_) sum = sum.defined() ? sum + loss : loss;
  return sum.defined() ? sum : at::zeros({}, head_.value.options().dtype(at::kDouble));
}

}  // namespace orthant
