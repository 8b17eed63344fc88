// What a row's passes and messages hold at the same time, in bytes or in any other unit. The order decides that, not
// the times.
#pragma once

#include <cstdint>
#include <functional>

#include "schedule/departures.h"
#include "schedule/schedule.h"

namespace orthant {

/// What one microbatch takes on one stage.
struct MicrobatchBytes {
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
  int64_t logits = 0;    // from S to Z, where there is one
  int64_t softmax_forward = 0, softmax_backward = 0;  // the most of S, and of T or TW beside what is kept
  int64_t lookup = 0, lookup_backward = 0;            // the most of E and of EB
};

/// Of a row at its peaks.
struct RowBytes {
  int64_t kept = 0;  // of all passes between F and their B or W
  int64_t all = 0;   // with messages, and with what passes hold for a while
};

/// Rows of one schedule. A RECV that stands between two passes is posted before the first; from there its bytes are
/// held until the pass that reads them. Where stages of one rank meet, they are held from the pass that makes them.
///
/// What was sent is held until it has left for certain: see departures().
class RowMemory {
 public:
  explicit RowMemory(const Schedule& schedule);
  RowBytes peak(int rank, const std::function<MicrobatchBytes(int stage, int microbatch)>& bytes_of) const;

 private:
  const Schedule& schedule_;
  const PerResult<int> departures_;
};

}  // namespace orthant
