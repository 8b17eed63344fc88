// Send completions: the index in a rank's row from which waiting for a send cannot deadlock, because its receiver has
// posted the RECV. Until then the buffer stays allocated, in the memory plan and in the run.
#pragma once

#include "schedule/results.h"
#include "schedule/schedule.h"

namespace orthant {

/// Indices of messages in their rows. A RECV counts at the index where it is posted: see posted_receives.h.
struct MessageIndices {
  PerResult<int> sent, posted;
};
MessageIndices find_message_indices(const Schedule& schedule);

/// For each SEND, the index of a later SEND in the same row. When the rank reaches that index, the receiver has posted
/// the RECV: the rank already has a message that the receiver sent after posting it. So waiting there for the send
/// completion cannot deadlock. INT_MAX means that the message completes only at the end of the row.
PerResult<int> send_completions(const Schedule& schedule);

}  // namespace orthant
