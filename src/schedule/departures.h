// When a message that a rank has sent has left it for certain: its memory is held until then, by a plan and by a run.
#pragma once

#include "schedule/results.h"
#include "schedule/schedule.h"

namespace orthant {

/// Where messages stand in their rows: each SEND, and each RECV where it is posted, which is before the pass in front.
struct MessagePlaces {
  PerResult<int> sent, posted;
};
MessagePlaces message_places(const Schedule& schedule);

/// For each SEND, the place of a later SEND in the same row: when the rank comes to that, its receiver is known to have
/// posted the RECV, since a message has come that it sent afterwards. A place behind all rows: at the row's end.
/// To wait there until the message has left cannot deadlock.
PerResult<int> departures(const Schedule& schedule);

}  // namespace orthant
