#include "parallel/vocabulary/input.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "parallel/vocabulary/channels.h"

namespace orthant {
namespace {

void check_tokens(const at::Tensor& tokens, int64_t vocabulary) {
  const at::Tensor where = (tokens.lt(0) | tokens.ge(vocabulary)).nonzero().flatten();
  if (where.numel() == 0) return;
  const auto first = where[0].item<int64_t>();
  throw DataError(fmt::format("token {} at position {} of the microbatch is outside the vocabulary of {}",
                              tokens[first].item<int64_t>(), first, vocabulary));
}

}  // namespace

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

void InputLayer::E(int microbatch, const at::Tensor& asked, bool with_gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = asked.flatten();
  check_tokens(tokens, plan_.slice.vocabulary);
  sweep();
  const auto [place, fresh] = live_.try_emplace(microbatch);
  ORTHANT_CHECK(fresh, microbatch);
  Live& one = place->second;
  const Range rows = plan_.slice.real();
  one.with_gradient = with_gradient;
  one.which = tokens.ge(rows.begin).logical_and_(tokens.lt(rows.end)).nonzero().squeeze(1);
  one.row = tokens.index_select(0, one.which).sub_(rows.begin);
  at::Tensor table = plan_.mesh.whole(table_);
  const int64_t all = tokens.numel(), width = table.size(1);
  one.part_shape = plan_.mesh.alone() ? std::vector<int64_t>{all, width}
                                      : plan_.mesh.part_shape(asked.size(0), asked.size(1));
  const at::Tensor found = at::zeros({all, width}, table.options());
  found.index_copy_(0, one.which, table.index_select(0, one.row));
  table.reset();
  one.sum = plan_.mesh.sum(found, asked.size(0));
  one.sum_arrives = sums_.reduce(one.sum, plan_.axes, plan_.root);
}

at::Tensor InputLayer::take_embedding(int microbatch) {
  ORTHANT_CHECK(at_root(), plan_.root);
  Live& one = live(microbatch);
  one.sum_arrives.wait();
  return std::exchange(one.sum, {});
}

void InputLayer::share_gradient(int microbatch, const at::Tensor& dx) {
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
  one.gradient_arrives.wait();
  const at::Tensor all = plan_.mesh.gather(one.gradient), sum = plan_.mesh.begin_gradient(table_, all.size(0) > 0);
  sum.index_add_(0, one.row, all.index_select(0, one.which).to(sum.scalar_type()));
  plan_.mesh.finish_gradient(table_, sum);
  one.sum_arrives.wait();  // ended long before
  live_.erase(microbatch);
}

void InputLayer::finish() {
  for (auto& [microbatch, one] : live_) one.sum_arrives.wait();
  sweep();
  ORTHANT_CHECK(live_.empty(), live_.size());
}

}  // namespace orthant
