// Passes that every schedule may need: messages between ranks, and stages in smaller parts.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// Adds a SEND and a RECV for each result that another rank reads. All rows become parts of one global order, in which
/// the SEND and the RECV of a message are adjacent. So the step terminates even if every SEND and RECV is a rendezvous,
/// and any two ranks see their messages in the same order. The order respects the barriers of the vocabulary layers.
/// Throws LogicError if the rows deadlock or already have messages.
Schedule add_messages(const Schedule& schedule);

/// Splits stage s into parts[s] consecutive stages on the same rank. Each pass becomes a pass of each part: forwards in
/// ascending order, backwards in descending order. Messages stay with the part at the border, and kinds without a stage
/// with the first part. The schedule must not have REDUCE, UNSHARD or RESHARD (LogicError).
/// Example: with two parts for each stage, 1RECV_F0 1F0 1B0 1SEND_B0 becomes 2RECV_F0 2F0 3F0 3B0 2B0 2SEND_B0.
Schedule split_stages(const Schedule& schedule, const std::vector<int>& parts);

}  // namespace orthant
