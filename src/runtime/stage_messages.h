// What pipeline stages hand each other: outputs forward, gradients of inputs backward. Between ranks as messages over
// the pipeline axis; on one rank (V schedules) from hand to hand.
#pragma once

#include <ATen/core/Tensor.h>

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

  /// Keeps what a stage has made for its SEND, or for the stage here that reads it.
  void keep(const Action& send, at::Tensor tensor);
  /// What was kept leaves; returns at once. Nothing does of a microbatch without sequences.
  void send(const Action& send);
  /// Posts the buffer that it will be in; returns at once.
  void receive(const Action& receive, at::Tensor buffer);
  /// What a stage reads, once it is there.
  at::Tensor take(const Action& receive);
  /// Returns when everything sent has left.
  void finish();

 private:
  struct Coming {
    at::Tensor tensor;
    Work work;
  };
  int owner(int stage) const { return stage_owner_[static_cast<size_t>(stage)]; }

  Comm& comm_;
  const std::vector<int> stage_owner_;
  std::map<Action, Coming> there_;
  std::vector<Coming> leaving_;
};

}  // namespace orthant
