// MessageSignature: operation, algorithm and dtype of a message. Sender and receiver both give one, so that a receiver
// can report a message that it did not expect. It takes no part in matching.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace orthant {

enum class MessageKind : uint32_t {
  exchange,  // also send and recv
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  reduce,
  reduce_in_chunks,
  barrier,
  all_reduce_by_tree,
};

struct MessageSignature {
  MessageKind kind = MessageKind::exchange;
  at::ScalarType type = at::kByte;
  bool more = false;  // a segment; more segments of the same tensor follow
  /// The one-round algorithm of a small operation. Both sides must have chosen the same algorithm.
  bool one_round = false;

  /// Converts to and from the kSignatureBits of a Message.
  uint32_t packed() const {
    return uint32_t{more} << 15 | uint32_t{one_round} << 14 | static_cast<uint32_t>(kind) << 8 |
           static_cast<uint8_t>(type);
  }
  static MessageSignature unpack(uint32_t bits) {
    return {static_cast<MessageKind>(bits >> 8 & 0x3f), static_cast<at::ScalarType>(bits & 0xff), (bits >> 15 & 1) != 0,
            (bits >> 14 & 1) != 0};
  }
};

/// Returns text such as "4.0 KiB of Float for an all_reduce".
std::string describe(MessageSignature signature, int64_t bytes);

}  // namespace orthant
