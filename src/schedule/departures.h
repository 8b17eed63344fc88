// When a message that a rank has sent has left it for certain: its memory is held until then, by a plan and by a run.
#pragma once

#include "schedule/per_pass.h"
#include "schedule/schedule.h"

namespace orthant {

/// Where messages stand in their rows: each SEND, and each RECV where it is posted, which is before the pass in front.
struct MessagePlaces {
  PerPass<int> sent, posted;
};
MessagePlaces message_places(const Schedule& schedule);

/// By its SEND, the place of the SEND further on in the same row by which a message has left, since something has come
/// that its receiver sent when it had posted the RECV. A place behind all rows: not before its row's end. To wait there
/// for what has left by the table waits in no circle: all that it takes has happened in every order of the schedule.
PerPass<int> departures(const Schedule& schedule);

}  // namespace orthant
