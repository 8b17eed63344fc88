// When a rank posts its receives. The interpreter of the schedule, the send completions and the plan's list of
// operations all read it here.
#pragma once

#include <span>
#include <vector>

#include "schedule/action.h"

namespace orthant {

/// A RECV of a row: its index, and the index of the Action before which it is posted.
struct PostedReceive {
  int index, posted_at;
  bool operator==(const PostedReceive&) const = default;
};

/// The RECVs of a row, in order. Each is posted before the last computation that precedes it, so that its message
/// arrives meanwhile, but never before a FINALIZE: a row that starts again sends its messages again.
/// Example: in the row 0F0 0SEND_F0 1RECV_F1 1F1, the RECV at index 2 is posted at index 0.
std::vector<PostedReceive> posted_receives(std::span<const Action> row);

}  // namespace orthant
