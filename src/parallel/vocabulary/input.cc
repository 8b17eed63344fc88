#include "parallel/vocabulary/input.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "model/token_checks.h"
#include "parallel/vocabulary/channels_plan.h"

namespace orthant {

InputLayer::InputLayer(Comm& comm, InputPlan plan, const Weight& table)
    : comm_(comm),
      plan_(std::move(plan)),
      table_(table),
      sums_(comm.channel(kEmbeddingChannel)),
      gradients_(comm.channel(kEmbeddingGradientChannel)) {
  ORTHANT_CHECK(table.value.size(0) == plan_.slice.rows.size(), table.value.size(0), plan_.slice.rows.size());
}

bool InputLayer::at_root() const { return comm_.position(plan_.axes) == plan_.root; }

InputLayer::Live& InputLayer::live(int microbatch) {
  const auto found = live_.find(microbatch);
  ORTHANT_CHECK(found != live_.end(), microbatch);
  return found->second;
}

// Frees every embedding sum that has been sent or, at the root, taken. Without gradient, erases the microbatch too.
void InputLayer::sweep() {
  for (auto at = live_.begin(); at != live_.end();) {
    Live& one = at->second;
    const bool left = !(at_root() && one.sum.defined()) && one.sum_arrives.done();
    if (left) one.sum_arrives.wait(), one.sum.reset();
    at = left && !one.with_gradient ? live_.erase(at) : std::next(at);
  }
}

void InputLayer::E(int microbatch, const at::Tensor& tokens, bool with_gradient) {
  const at::NoGradGuard no_grad;
  check_tokens(tokens, plan_.slice.vocabulary);
  sweep();
  const auto [place, fresh] = live_.try_emplace(microbatch);
  ORTHANT_CHECK(fresh, microbatch);
  Live& one = place->second;
  one.with_gradient = with_gradient;
  one.shard.emplace(plan_.mesh, table_, tokens, plan_.slice.real(), with_gradient);
  one.sum = one.shard->look_up(plan_.mesh, table_);
  one.part_shape = plan_.mesh.alone() ? one.sum.sizes().vec() : plan_.mesh.part_shape(tokens.size(0), tokens.size(1));
  one.sum_arrives = sums_.reduce_in_chunks(one.sum, plan_.axes, plan_.root);
}

at::Tensor InputLayer::take_embedding(int microbatch) {
  ORTHANT_CHECK(at_root(), plan_.root);
  Live& one = live(microbatch);
  one.sum_arrives.wait();
  return std::exchange(one.sum, {});
}

void InputLayer::broadcast_gradient(int microbatch, const at::Tensor& dx) {
  Live& one = live(microbatch);
  ORTHANT_CHECK(at_root() == dx.defined(), plan_.root);
  one.gradient = at_root() ? dx.detach().reshape(one.part_shape).contiguous()
                           : at::empty(one.part_shape, table_.value.detach().options());
  one.gradient_arrives = gradients_.broadcast(one.gradient, plan_.axes, plan_.root);
}

void InputLayer::EB(int microbatch) {
  const at::NoGradGuard no_grad;
  Live& one = live(microbatch);
  ORTHANT_CHECK(one.gradient.defined() && !table_.defers(), microbatch);
  sweep();
  one.gradient_arrives.wait();
  one.shard->accumulate(plan_.mesh, table_, one.gradient);
  one.sum_arrives.wait();  // ended long before
  live_.erase(microbatch);
}

void InputLayer::finish() {
  for (auto& [microbatch, one] : live_) one.sum_arrives.wait();
  sweep();
  ORTHANT_CHECK(live_.empty(), live_.size());
}

}  // namespace orthant
