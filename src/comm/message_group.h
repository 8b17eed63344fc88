// The collectives of a group on an Engine: its positions to ranks, its operations to tags.
#pragma once

#include <vector>

#include "comm/engine.h"
#include "comm/group.h"

namespace orthant {

/// `number` tells the groups of one rank apart and is below kGroups; its members use the same one. Opening costs
/// nothing: all groups share the engine's connections. `beside`: however small, its operations go on while the rank
/// computes.
std::unique_ptr<Group> message_group(Engine& engine, std::vector<int> ranks, int position, uint32_t number,
                                     bool beside = false);

/// Groups that a rank can tell apart.
inline constexpr uint32_t kGroups = 1 << 11;
/// Of them over the same ranks.
inline constexpr int kLanes = 1 << 3;
/// Tags of messages; the last is shift's, all others are for send, recv and exchange.
inline constexpr int kUserTags = 1 << 19;
inline constexpr int kShiftTag = kUserTags - 1;

}  // namespace orthant
