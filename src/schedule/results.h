// Results that stages hand on: who reads whom, and a table with an entry for each pass of each microbatch through each
// stage. What everything that walks over a schedule's rows has to know.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/action.h"

namespace orthant {

/// A time that is not known yet.
inline constexpr double kUnknown_s = -1;

/// Whether it is F, B or I, whose results other stages read.
inline bool makes_result(const Action& action) {
  return action.kind == ActionKind::F || action.kind == ActionKind::B || action.kind == ActionKind::I;
}
/// Of those: the pass whose result it reads, and the one that reads its own, of its kind, on the stages beside it. On
/// stage -1, or one behind the last, there is none.
inline Action source_of(const Action& pass) {
  return {pass.kind, pass.stage + (pass.kind == ActionKind::F ? -1 : 1), pass.microbatch};
}
inline Action reader_of(const Action& pass) {
  return {pass.kind, pass.stage + (pass.kind == ActionKind::F ? 1 : -1), pass.microbatch};
}
/// The messages between them: what it reads coming in, and what it makes going out.
inline Action recv_of(const Action& pass) {
  return {pass.kind == ActionKind::F ? ActionKind::RECV_F : ActionKind::RECV_B, pass.stage, pass.microbatch};
}
inline Action send_of(const Action& pass) {
  return {pass.kind == ActionKind::F ? ActionKind::SEND_F : ActionKind::SEND_B, pass.stage, pass.microbatch};
}

/// By direction, stage and microbatch: one entry for F and for the messages of outputs, one for B or I and for the
/// messages of gradients.
template <typename T>
class PerResult {
 public:
  PerResult() = default;
  PerResult(int stages, int microbatches, T value)
      : stages_(static_cast<size_t>(stages)),
        microbatches_(static_cast<size_t>(microbatches)),
        all_(2 * stages_ * microbatches_, value) {}

  /// Whether there is such a stage: source_of() the first F is on none.
  bool has(const Action& action) const { return action.stage >= 0 && static_cast<size_t>(action.stage) < stages_; }
  T& operator[](const Action& action) { return all_[place(action)]; }
  const T& operator[](const Action& action) const { return all_[place(action)]; }

 private:
  size_t place(const Action& action) const {
    using enum ActionKind;
    const bool forward = action.kind == F || action.kind == SEND_F || action.kind == RECV_F;
    const size_t stage = static_cast<size_t>(action.stage) + (forward ? 0 : stages_);
    return stage * microbatches_ + static_cast<size_t>(action.microbatch);
  }

  size_t stages_ = 0, microbatches_ = 0;
  std::vector<T> all_;
};

}  // namespace orthant
