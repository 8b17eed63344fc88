// What a row's passes and messages hold at the same time, in bytes or in any other unit. The order decides that, not
// the times.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "schedule/schedule.h"

namespace orthant {

/// What one microbatch takes on one stage.
struct PassBytes {
  int64_t kept = 0;         // from F to B or I
  int64_t for_weights = 0;  // what is left of it from I to W
  int64_t input = 0;        // what F reads of the stage before; as much as the gradient that it gets. 0: nothing before
  int64_t output = 0;       // what F makes for the next stage; as much as the gradient that B reads. 0: nothing behind
  /// The most that a pass holds beside everything kept, its own included: F at its end; B and I with the gradient that
  /// they read, from what is kept at their beginning.
  int64_t forward = 0, backward = 0, backward_for_input = 0;
  int64_t weights = 0;   // the same in W
  int64_t summands = 0;  // others' parts of gradient sums that B or W begins, to the row's end
  int64_t softmax = 0;   // kept on every rank from S to T or TW
};

/// Of a row at its peaks.
struct RowBytes {
  int64_t kept = 0;  // of all passes between F and their B or W
  int64_t all = 0;   // with messages, and with what passes hold for a while
};

/// Rows of one schedule. What is received between two passes is posted before the first, and held until the one that
/// reads it; where stages of one rank meet, from the pass that made it. What was sent is held until the first SEND
/// after something has come that its receiver sent when it had posted the RECV: then it has left for certain.
class RowMemory {
 public:
  explicit RowMemory(const Schedule& schedule);
  RowBytes peak(int rank, const std::function<PassBytes(int stage, int microbatch)>& bytes_of) const;

 private:
  int& place(const Action& message);
  int place(const Action& message) const { return const_cast<RowMemory*>(this)->place(message); }

  const Schedule& schedule_;
  const int stages_, microbatches_;
  /// Of each message, by kind, stage and microbatch: where it stands in its row; a RECV: where it is posted.
  std::vector<int> places_;
};

}  // namespace orthant
