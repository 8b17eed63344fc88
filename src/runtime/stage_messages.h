// What pipeline stages hand each other: outputs forward, gradients of inputs backward. Between ranks as messages over
// the pipeline axis; on one rank (V schedules) from hand to hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "schedule/action.h"

namespace orthant {

/// One step's messages of one rank, by their RECV: what stage reads what. Those between two ranks are sent and received
/// in one order, which validate() has seen to, so that they need no tags. A message is what Plan::stream_bytes() says.
class StageMessages {
 public:
  /// The Comm must outlive it. stage_owner: pipeline rank by stage.
  StageMessages(Comm& comm, std::vector<int> stage_owner) : comm_(comm), stage_owner_(std::move(stage_owner)) {}

  /// At most so many are leaving at a time: send() then waits until the oldest has left. No order of a valid schedule
  /// stops there, since it ends where each SEND waits for its RECV.
  void limit(size_t leaving) { most_leaving_ = leaving; }
  /// The row has come to this place: what has left by then (departures()) needs its memory no more.
  void leave(int place);
  /// Keeps what a stage has made for its SEND, or for the stage here that reads it.
  void keep(const Action& send, at::Tensor tensor);
  /// What was kept leaves, and will have left at that place; returns at once, within the limit.
  void send(const Action& send, int departure);
  /// Posts the buffer that it will be in; returns at once.
  void receive(const Action& receive, at::Tensor buffer);
  /// What a stage reads, once it is there.
  at::Tensor take(const Action& receive);
  /// Drops what has come, is coming, or was kept; waits for what was posted.
  void discard();
  /// Returns when everything sent has left.
  void finish();

 private:
  struct Message {
    at::Tensor tensor;
    Work work;  // none of what is kept
    int departure = std::numeric_limits<int>::max();  // the place of the row where it has left
  };
  int owner(int stage) const { return stage_owner_[static_cast<size_t>(stage)]; }

  Comm& comm_;
  const std::vector<int> stage_owner_;
  std::map<Action, Message> there_;
  std::deque<Message> leaving_;  // the oldest first
  size_t most_leaving_ = std::numeric_limits<size_t>::max();
};

}  // namespace orthant
