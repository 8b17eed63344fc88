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

/// One step's messages of one rank. Those between two ranks are sent and received in one order, which validate() has
/// seen to, so they need no names. A message is what Plan::stream_bytes() says.
class StageMessages {
 public:
  /// The Comm must outlive it. stage_owner: pipeline rank by stage.
  StageMessages(Comm& comm, std::vector<int> stage_owner) : comm_(comm), stage_owner_(std::move(stage_owner)) {}

  /// Keeps the output of a stage (forward), or the gradient of its input, for SEND or for the next stage here.
  void keep(bool forward, int stage, int microbatch, at::Tensor tensor);
  /// SEND_F, SEND_B: what was kept leaves; returns at once.
  void send(const Action& action);
  /// RECV_F, RECV_B: posts the buffer that it will be in; returns at once.
  void receive(const Action& action, at::Tensor buffer);
  /// The input of a stage (forward), or the gradient of its output, once it is there.
  at::Tensor take(bool forward, int stage, int microbatch);
  /// Returns when everything sent has left.
  void finish();

 private:
  using Key = std::pair<bool, std::pair<int, int>>;  // forward; stage that reads it, microbatch
  struct Coming {
    at::Tensor tensor;
    Work work;
  };
  int owner(int stage) const { return stage_owner_[static_cast<size_t>(stage)]; }

  Comm& comm_;
  const std::vector<int> stage_owner_;
  std::map<Key, Coming> there_;
  std::vector<Coming> leaving_;
};

}  // namespace orthant
