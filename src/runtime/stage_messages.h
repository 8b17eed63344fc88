// Tensors between pipeline stages: outputs forward, gradients of inputs backward. Between ranks they are messages over
// the pipeline axis. Between two stages of one rank (V schedules) they are handed over without a copy.
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

/// The messages of one rank in one step, keyed by the RECV that reads them. Any two ranks send and receive their
/// messages in the same order, as validate() ensures, so they need no message tags. Plan::stream_bytes() gives the size
/// of a message.
class StageMessages {
 public:
  /// The Comm must outlive it. stage_owner: pipeline rank, by stage.
  StageMessages(Comm& comm, std::vector<int> stage_owner) : comm_(comm), stage_owner_(std::move(stage_owner)) {}

  /// Limits the number of incomplete sends: send() then waits for the oldest. This cannot deadlock: a valid schedule
  /// terminates even if each SEND waits for its RECV.
  void limit_incomplete_sends(size_t count) { max_incomplete_sends_ = count; }
  /// Called when the row reaches index `row_index`: waits for the sends whose completion is due by then, see
  /// send_completions(), and releases their tensors.
  void complete_sends(int row_index);
  /// Stores a stage's result for its SEND, or for the stage on this rank that reads it.
  void keep(const Action& send, at::Tensor tensor);
  /// Starts sending the stored result, and returns at once unless limit_incomplete_sends() is reached.
  /// `send_completion` is the row index of the send completion.
  void send(const Action& send, int send_completion);
  /// Posts the receive into `buffer`; returns at once.
  void receive(const Action& receive, at::Tensor buffer);
  /// Returns a stage's input, after waiting for its message.
  at::Tensor take(const Action& receive);
  /// Drops all results and messages that no stage has read. Waits for the receives that are posted.
  void discard();
  /// Returns when all sends have completed.
  void finish();

 private:
  struct Message {
    at::Tensor tensor;
    Work work;                                        // undefined for a stored result that is not a message
    int send_completion = std::numeric_limits<int>::max();  // row index of the send completion
  };
  int owner(int stage) const { return stage_owner_[static_cast<size_t>(stage)]; }

  Comm& comm_;
  const std::vector<int> stage_owner_;
  std::map<Action, Message> unread_;      // results and posted receives that no stage has read, by RECV
  std::deque<Message> incomplete_sends_;  // incomplete sends, the oldest first
  size_t max_incomplete_sends_ = std::numeric_limits<size_t>::max();
};

}  // namespace orthant
