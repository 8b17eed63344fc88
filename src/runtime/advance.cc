// Consecutive training steps. On a GPU, the device decides about a step's update while the host prepares the next step:
// advance_late(). With post-validation, a rank updates its weights as soon as the statistics that it has seen permit
// it. The step is final when the total statistics have come back: docs/decisions/0014. In pseudo-code, the row of step
// s on one rank is:
//
//   forwards of the first microbatches
//   FINALIZE: receive the total statistics of step s - 1
//           if the total forbids the update of step s - 1: restore the backup
//           report the result of step s - 1
//           if its update is not final: update with the total unless the step is skipped, and start this row again
//   the other forwards, and the backwards
//   STEP:   add this rank's statistics of step s to those of earlier ranks, and send them to the next rank
//           if they permit the update: save masters and optimizer state, and update
//
// After a clipped step, no rank updates in STEP. All then wait after the row for the total, and FINALIZE of step s + 1
// has nothing to do.
#include "runtime/session.h"

namespace orthant {

void Session::advance(int64_t step, const Signals& signals, const OnFinalResult& on_final_result) {
  if (parts_.reports_late) return advance_late(step, signals, on_final_result);
  if (!plan_.post_validates()) {
    const StepResult result = gradients(step, signals);
    on_final_result(result);
    update(step, result);
    return;
  }
  const at::Tensor statistics = initial_step_statistics(signals);
  Pending made{.statistics = statistics};
  const auto make = [&] {
    finish_gradients(statistics);
    sum(statistics, false);
    chain_.accumulate(statistics);
    read(statistics, made.result);
    // After a clipped step, this step is likely to be clipped too. No rank then updates before it has the total norm.
    made.updated = !expects_clipping_ && permits_update(made.result);
    if (!made.updated) return;
    if (!chain_.is_last_rank()) backup_.save();  // the last rank has the total and never undoes a step
    set_clip_scale(made.result.norm);
    update_weights(step);
  };
  const auto validate = [&](const auto& discard) { return validate_pending(on_final_result, discard); };
  made.result = carry_out(step, statistics, {.step = make, .finalize = validate});
  pending_ = std::move(made);
  if (expects_clipping_) finalize_pending_step(on_final_result);
}

// The device works through the row while the host waits for the previous step's result, which it had before the row.
// So the number of skipped steps and the last norm are known at this point.
void Session::advance_late(int64_t step, const Signals& signals, const OnFinalResult& on_final_result) {
  const at::Tensor statistics = initial_step_statistics(signals);
  const StepResult result = carry_out(step, statistics, {});
  finish_gradients(statistics);
  report_late(on_final_result);
  sum(statistics, true);
  announce_updates();
  decide_update(statistics);
  update_weights(step);
  decided_step_.emplace(result, HostCopy(statistics));
}

void Session::decide_update(const at::Tensor& statistics) {
  const TrainingConfig& training = plan_.config.training;
  const double* numbers = statistics.const_data_ptr<double>();
  orthant::decide_update(statistics.device(),
                         {.loss = numbers + StepSignals::kLoss,
                          .squares = numbers + StepSignals::kSquares,
                          .skip_above_norm = training.skip_above_norm,
                          .max_norm = training.max_norm,
                          .clipped_norm = training.clips_by_previous_norm() ? last_norm_.value_or(0) : -1,
                          .gradient_scale = gradient_scale_.mutable_data_ptr<double>()});
}

void Session::report_late(const OnFinalResult& on_final_result) {
  if (!decided_step_) return;
  DecidedStep step = *std::exchange(decided_step_, std::nullopt);
  comm_.set_activity(fmt::format("waiting for the result of step {}", step.result.step));
  read(step.statistics.get(), step.result);
  on_final_result(step.result);
  if (must_skip(step.result)) {
    ++skipped_steps_;
  } else {
    last_norm_ = step.result.norm;
  }
}

void Session::finalize_pending_step(const OnFinalResult& on_final_result) {
  report_late(on_final_result);
  if (pending_) comm_.set_activity(fmt::format("receiving the gradient norm of step {}", pending_->result.step));
  validate_pending(on_final_result, [] {});
  chain_.wait_for_sends();
}

bool Session::permits_update(const StepResult& result) const {
  return !must_skip(result) && clip_factor(result.norm, plan_.config.training.max_norm) == 1;
}

bool Session::validate_pending(const OnFinalResult& on_final_result, const std::function<void()>& discard) {
  if (!pending_) return false;
  Pending step = *std::exchange(pending_, std::nullopt);
  chain_.receive_total(step.statistics);
  read(step.statistics, step.result);
  const bool update_is_final = step.updated && permits_update(step.result);
  expects_clipping_ = !permits_update(step.result);
  if (!update_is_final) discard();
  if (!update_is_final && step.updated) {
    backup_.restore();
    gather_weights();
  }
  on_final_result(step.result);
  if (update_is_final) {
    last_norm_ = step.result.norm;
  } else {
    update(step.result.step, step.result);
  }
  return !update_is_final;
}

}  // namespace orthant
