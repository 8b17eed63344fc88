// Peers: the members of a group as one operation sees them: whom it sends to, under which tag, and what it says that
// it sends.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/engine.h"
#include "comm/label.h"

namespace orthant {

class Peers {
 public:
  Peers(Engine& engine, Job& job, const std::vector<int>& ranks, int position, uint32_t tag, Label label)
      : engine_(&engine), job_(&job), ranks_(&ranks), position_(position), tag_(tag), label_(label) {}

  int size() const { return static_cast<int>(ranks_->size()); }
  int position() const { return position_; }
  /// The position so many places on, round the ring.
  int at(int offset) const { return ((position_ + offset) % size() + size()) % size(); }
  /// The same, for an algorithm of one round: its messages say so.
  Peers in_one_round() const {
    Peers peers = *this;
    peers.label_.one_round = true;
    return peers;
  }
  at::ScalarType type() const { return label_.type; }
  int64_t element_bytes() const { return static_cast<int64_t>(c10::elementSize(label_.type)); }

  /// Empty messages are sent too: a side that expected more learns of it.
  /// `more`: this is a segment, and not the last. So two that cut differently long tensors learn of it.
  Posted send(int to, std::span<const std::byte> memory, bool more = false) const;
  Posted receive(int from, std::span<std::byte> memory, bool more = false) const;
  /// Memory for what is summed, until the operation is done.
  std::byte* staging(int64_t bytes) const;

 private:
  Posted post(int peer, std::span<std::byte> memory, bool send, bool more) const;

  Engine* engine_;
  Job* job_;
  const std::vector<int>* ranks_;
  int position_;
  uint32_t tag_;
  Label label_;
};

}  // namespace orthant
