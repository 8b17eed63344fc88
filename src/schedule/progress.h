// Whether the rows of a Schedule come to their ends when ranks carry them out side by side.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace orthant {

/// Where a rank stops for good, and the Action that would let it go on: the partner of its message, or what computes
/// its input.
struct Stop {
  int rank;
  int index;
  Action needed;
};

/// Carries the rows out under the strictest semantics that a transport may have: a SEND and its RECV each wait until
/// the other's rank has come to it, and the vocabulary's broadcasts until all ranks have (barriers.h). A computation
/// waits for what it reads, which is there with the RECV; of a stage on the same rank, and without any messages in the
/// schedule, once it is computed. Linear in the Actions; of each there is one at most, on its stage's rank. No stops:
/// all rows end.
std::vector<Stop> stops(const Schedule& schedule);

}  // namespace orthant
