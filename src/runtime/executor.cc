#include "runtime/executor.h"

#include "base/errors.h"

#include <ATen/ATen.h>

namespace orthant {

Executor::Executor(StageTable table, StageWork work, Comm& comm)
    : table_(std::move(table)), work_(std::move(work)), messages_(comm, table_.owners) {}

void Executor::run(std::span<const Action> row, const std::function<void(const Action&, size_t)>& announce) {
  periods_.clear();
  size_t received = 0;  // RECVs before it are posted
  for (size_t index = 0; index < row.size(); ++index) {
    if (announce) announce(row[index], index);
    periods_.push_back({Clock::now(), {}});
    const Lane lane = facts(row[index].kind).lane;
    if (lane == Lane::compute) received = receive_ahead(row, index);
    if (lane != Lane::receive || index >= received) carry_out(row[index]);
    periods_.back().end = Clock::now();
  }
  messages_.finish();
}

// Posts what stands between the computation and the next; where that is.
size_t Executor::receive_ahead(std::span<const Action> row, size_t index) {
  for (++index; index < row.size(); ++index) {
    const Lane lane = facts(row[index].kind).lane;
    if (lane == Lane::compute) break;
    if (lane == Lane::receive) receive(row[index]);
  }
  return index;
}

void Executor::carry_out(const Action& action) {
  switch (action.kind) {
    case ActionKind::F:
    case ActionKind::B:
    case ActionKind::I: return compute(action);
    case ActionKind::W: return work_.weight_gradients(action);
    case ActionKind::SEND_F:
    case ActionKind::SEND_B: return messages_.send(action);
    case ActionKind::RECV_F:
    case ActionKind::RECV_B: return receive(action);
    case ActionKind::REDUCE: return work_.reduce(action);
    default:
      throw LogicError("the schedule asks for an Action that this runtime does not carry out: " + to_string(action));
  }
}

// A microbatch without sequences costs nothing, adds nothing and sends nothing.
void Executor::compute(const Action& action) {
  if (table_.stream_shape(action.microbatch).front() == 0) return;
  const bool forward = action.kind == ActionKind::F;
  at::Tensor made = (forward ? work_.forward : work_.backward)(action, take(action));
  if (made.defined()) {
    messages_.keep({forward ? ActionKind::SEND_F : ActionKind::SEND_B, action.stage, action.microbatch},
                   std::move(made));
  }
}

at::Tensor Executor::take(const Action& action) {
  const bool forward = action.kind == ActionKind::F;
  if (action.stage == (forward ? 0 : static_cast<int>(table_.owners.size()) - 1)) return {};
  at::Tensor taken =
      messages_.take({forward ? ActionKind::RECV_F : ActionKind::RECV_B, action.stage, action.microbatch});
  periods_.back().start = Clock::now();
  return taken;
}

void Executor::receive(const Action& action) {
  const auto shape = table_.stream_shape(action.microbatch);
  if (shape.front() > 0) messages_.receive(action, at::empty(shape, table_.stream));
}

}  // namespace orthant
