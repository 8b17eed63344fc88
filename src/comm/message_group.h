// Implements Group on an Engine: maps positions to ranks, and operations to message tags.
#pragma once

#include <vector>

#include "comm/engine.h"
#include "comm/group.h"

namespace orthant {

struct MessageGroupOptions {
  /// Even small operations advance in the background while the rank computes.
  bool is_channel = false;
  /// Behaves as NCCL does with one communicator for the group and one for each direction between two of its ranks: an
  /// operation begins when the one posted before it on the same communicator is done, and a send is done when the
  /// receiver has received the message.
  bool in_order = false;
};

/// Returns the group of these ranks, in which this rank has the given position. `number` identifies the group on this
/// rank; it must be below kGroups and equal on all members. Opening needs no communication, because all groups share
/// the engine's connections. A group holds O(n) memory for n ranks.
std::unique_ptr<Group> message_group(Engine& engine, std::vector<int> ranks, int position, uint32_t number,
                                     const MessageGroupOptions& options);

/// Number of groups that one rank can distinguish.
inline constexpr uint32_t kGroups = 1 << 11;
/// Number of those that may have the same ranks: the groups of a Comm and of its channels.
inline constexpr int kNumChannels = 1 << 3;
/// Number of user tags. The last one is for shift, and the one before it for confirmations of messages in order; all
/// others are for send, recv and exchange.
inline constexpr int kUserTags = 1 << 19;
inline constexpr int kShiftTag = kUserTags - 1, kConfirmationTag = kUserTags - 2;

}  // namespace orthant
