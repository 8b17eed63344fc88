// Results that pass between stages: which pass reads which result, and PerResult, a table with one entry per direction,
// stage and microbatch. All code that walks over the rows of a schedule uses them.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/action.h"

namespace orthant {

/// Marks a time that is not known yet.
inline constexpr double kUnknown_s = -1;

/// Whether the kind is F, B or I, whose results other stages read.
inline bool produces_result(const Action& action) {
  return action.kind == ActionKind::F || action.kind == ActionKind::B || action.kind == ActionKind::I;
}
/// For F, B or I: the pass on the neighboring stage whose result it reads. The returned kind is that of `pass`, even if
/// the neighbor has I in place of B or the reverse. The stage is -1, or one past the last, if there is no such pass.
inline Action producer_of(const Action& pass) {
  return {pass.kind, pass.stage + (pass.kind == ActionKind::F ? -1 : 1), pass.microbatch};
}
/// For F, B or I: the pass on the neighboring stage that reads its result, with the same conventions as producer_of().
inline Action consumer_of(const Action& pass) {
  return {pass.kind, pass.stage + (pass.kind == ActionKind::F ? 1 : -1), pass.microbatch};
}
/// The RECV of the result that the pass reads.
inline Action recv_of(const Action& pass) {
  return {pass.kind == ActionKind::F ? ActionKind::RECV_F : ActionKind::RECV_B, pass.stage, pass.microbatch};
}
/// The SEND of the pass's own result.
inline Action send_of(const Action& pass) {
  return {pass.kind == ActionKind::F ? ActionKind::SEND_F : ActionKind::SEND_B, pass.stage, pass.microbatch};
}

/// Table by direction, stage and microbatch. F, SEND_F and RECV_F of a stage and microbatch share one entry; B, I,
/// SEND_B and RECV_B share another.
template <typename T>
class PerResult {
 public:
  PerResult() = default;
  PerResult(int stages, int microbatches, T value)
      : stages_(static_cast<size_t>(stages)),
        microbatches_(static_cast<size_t>(microbatches)),
        all_(2 * stages_ * microbatches_, value) {}

  /// Whether the table has the Action's stage. False for producer_of() an F of stage 0, for example.
  bool has(const Action& action) const { return action.stage >= 0 && static_cast<size_t>(action.stage) < stages_; }
  T& operator[](const Action& action) { return all_[index(action)]; }
  const T& operator[](const Action& action) const { return all_[index(action)]; }

 private:
  size_t index(const Action& action) const {
    using enum ActionKind;
    const bool forward = action.kind == F || action.kind == SEND_F || action.kind == RECV_F;
    const size_t stage = static_cast<size_t>(action.stage) + (forward ? 0 : stages_);
    return stage * microbatches_ + static_cast<size_t>(action.microbatch);
  }

  size_t stages_ = 0, microbatches_ = 0;
  std::vector<T> all_;
};

}  // namespace orthant
