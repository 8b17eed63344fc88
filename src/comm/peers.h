// Peers: the members of a group as one operation addresses them, with its message tag and signature
// (message_signature.h). It is a few words, so tasks copy it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/engine.h"
#include "comm/message_signature.h"

namespace orthant {

class Peers {
 public:
  Peers(Engine& engine, Job& job, const std::vector<int>& ranks, int position, uint32_t tag, MessageSignature signature)
      : engine_(&engine), job_(&job), ranks_(&ranks), position_(position), tag_(tag), signature_(signature) {}

  int size() const { return static_cast<int>(ranks_->size()); }
  int position() const { return position_; }
  /// The position `offset` places further along the ring; the offset may be negative.
  int at(int offset) const { return ((position_ + offset) % size() + size()) % size(); }
  /// The same peers for a one-round algorithm, which is noted in the signature of every message.
  Peers in_one_round() const {
    Peers peers = *this;
    peers.signature_.one_round = true;
    return peers;
  }
  at::ScalarType type() const { return signature_.type; }
  int64_t element_bytes() const { return static_cast<int64_t>(c10::elementSize(signature_.type)); }

  /// Post a message to, or from, a position. Empty messages are sent too, so that a receiver that expected data detects
  /// the mismatch. `more`: this is a segment, and not the last one. It reveals tensors of different length on the two
  /// sides.
  Posted send(int to, std::span<const std::byte> memory, bool more = false) const;
  Posted receive(int from, std::span<std::byte> memory, bool more = false) const;
  /// Allocates memory for the parts of a sum. It lives until the operation is done. Call it at most once per operation.
  std::byte* staging(int64_t bytes) const;

 private:
  Posted post(int peer, std::span<std::byte> memory, bool send, bool more) const;

  Engine* engine_;
  Job* job_;
  const std::vector<int>* ranks_;
  int position_;
  uint32_t tag_;
  MessageSignature signature_;
};

}  // namespace orthant
