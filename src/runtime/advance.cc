// Consecutive training steps. With post-validation, a rank updates its weights as soon as the statistics that it has
// seen permit it. The step is final when the total statistics have come back: docs/decisions/0014.
// In pseudo-code, the row of step s on one rank is:
//
//   forwards of the first microbatches
//   FINALIZE: receive the total statistics of step s - 1
//           if the update of step s - 1 was wrong: restore the copies
//           report the result of step s - 1
//           if its update was wrong or has not been made: update with the total, and start this row again
//   the other forwards, and the backwards
//   STEP:   add this rank's statistics of step s to those of earlier ranks, and send them to the next rank
//           if they permit the update: copy masters and optimizer state, and update
//
// After a clipped step, no rank updates in STEP. All then wait after the row for the total, and FINALIZE of step s + 1
// has nothing to do.
#include <cmath>

#include "runtime/session.h"

namespace orthant {

void Session::advance(int64_t step, const Signals& signals, const Known& known) {
  if (!plan_.post_validates()) {
    const StepResult result = gradients(step, signals);
    known(result);
    update(step, result);
    return;
  }
  const at::Tensor numbers = initial_step_statistics(signals);
  Pending made{.numbers = numbers};
  const auto make = [&] {
    finish_gradients(numbers);
    sum(numbers, false);
    chain_.add_up(numbers);
    read(numbers, made.result);
    // After a clipped step, this step is likely to be clipped too. No rank then updates before it has the total norm.
    made.moved = !expects_clipping_ && permits_update(made.result);
    if (!made.moved) return;
    if (!chain_.ends_here()) before_.keep();  // the last rank knows the total and never undoes a step
    update(step, made.result);
  };
  const auto validate = [&](const auto& discard) { return validate_pending(known, discard); };
  made.result = carry_out(step, numbers, {.step = make, .settle = validate});
  pending_ = std::move(made);
  if (expects_clipping_) settle(known);
}

void Session::settle(const Known& known) {
  if (pending_) comm_.set_activity(fmt::format("learning the norm of step {}", pending_->result.step));
  validate_pending(known, [] {});
  chain_.finish();
}

bool Session::permits_update(const StepResult& result) const {
  return std::isfinite(result.loss) && std::isfinite(result.norm) &&
         clip_factor(result.norm, plan_.config.training.max_norm) == 1;
}

bool Session::validate_pending(const Known& known, const std::function<void()>& discard) {
  if (!pending_) return false;
  Pending step = *std::exchange(pending_, std::nullopt);
  chain_.learn(step.numbers);
  read(step.numbers, step.result);
  const bool right = step.moved && permits_update(step.result);
  expects_clipping_ = !permits_update(step.result);
  if (!right) discard();
  if (!right && step.moved) before_.restore();
  known(step.result);
  if (!right) update(step.result.step, step.result);
  return !right;
}

}  // namespace orthant
