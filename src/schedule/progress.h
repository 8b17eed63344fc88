// Deadlock detection: carries out all rows of a schedule together and reports the ranks that cannot finish.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace orthant {

/// A position at which a rank is blocked forever, and the Action that it waits for. That is the other end of its
/// message, or the Action that computes its input.
struct Stop {
  int rank;
  int index;
  Action needed;
};

/// Carries out the rows under the strictest semantics of a transport, and returns the blocked ranks; empty if all rows
/// finish. Every message is a rendezvous: a SEND and its RECV wait until both ranks have reached them. A broadcast of
/// the vocabulary layers waits until all ranks have reached it (barriers.h). A computation waits for the RECV of its
/// input; if the producer is on the same rank, or the schedule has no messages, for the producing computation. Each
/// Action must occur at most once, on the rank that owns its stage. The run time is linear in the number of Actions.
std::vector<Stop> stops(const Schedule& schedule);

}  // namespace orthant
