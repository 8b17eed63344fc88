// Adds messages to a schedule of computations, so that the runtime can carry it out on several ranks.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// Adds a SEND and a RECV for each result that another rank reads. All rows become parts of one global order, in which
/// the SEND and the RECV of a message are adjacent. So the step terminates even if every SEND and RECV is a rendezvous,
/// and any two ranks see their messages in the same order. The order respects the barriers of the vocabulary layers.
/// Throws LogicError if the rows deadlock or already have messages.
Schedule add_messages(const Schedule& schedule);

}  // namespace orthant
