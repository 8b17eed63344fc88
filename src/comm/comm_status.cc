// The part of CommState that reports the status of this rank: the operations that it has started, and the one that it
// waits for. It also prints warnings.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "comm/comm_state.h"

namespace orthant {

// A rank is still while its activity and the operation that it waits for do not change.
void CommState::watch_for_hangs(WatchOptions& watching) {
  if (rendezvous_.in_process && !options_.on_warning) return;
  watching.on_warning = [this](const std::string& warning) { warn(warning); };
  HangOptions looking{.stall_s = options_.hang_s,
                      .progress = [this] { return progress_.load(); },
                      .status = [this] { return status(); },
                      .report = watching.on_warning};
  hangs_.emplace(mesh, rank, store_, std::move(looking));
  watching.on_tick = [this](double elapsed_s) {
    hangs_->tick(elapsed_s);
    // No operation reports the loss while this rank waits in a roll call or for a disk.
    if (watches_engine_ && !engine->find_lost_peer().empty()) watch->suspect();
  };
}

void CommState::warn(const std::string& warning) {
  if (options_.on_warning) return options_.on_warning(warning);
  fmt::print(stderr, "warning: {}\n", warning);
}

RankStatus CommState::status() {
  const std::lock_guard lock(waiting_mutex_);
  RankStatus status{.rank = rank, .activity = activity_};
  const auto by_rank = [](const OpenGroup& group, const std::map<int, int64_t>& counts) {
    std::map<int, int64_t> result;
    for (const auto& [position, count] : counts) result[group.ranks[static_cast<size_t>(position)]] = count;
    return result;
  };
  for (const auto& [name, group] : groups_) {
    if (group.size() == 1) continue;
    status.started[name] = {group.collectives, by_rank(group, group.sends), by_rank(group, group.receives)};
  }
  if (!blocked_in_) return status;
  status.operation = blocked_in_->kind;
  status.group = blocked_in_->group->name;
  status.bytes = blocked_in_->tensor_bytes;
  status.number = blocked_in_->number;
  for (const auto& [position, receive, number] : blocked_in_->messages)
    status.messages.push_back({blocked_in_->group->ranks[static_cast<size_t>(position)], receive, number});
  return status;
}

// Numbers the operation among those of its group.
void CommState::count(GroupCall& operation) {
  const std::lock_guard lock(waiting_mutex_);
  OpenGroup& group = groups_.at(operation.group->name);
  if (operation.messages.empty()) operation.number = ++group.collectives;
  for (auto& [position, receive, number] : operation.messages)
    number = ++(receive ? group.receives : group.sends)[position];
}

void CommState::record(const GroupCall& operation) {
  if (options_.kept_operations == 0) return;
  const auto& messages = operation.messages;
  const auto is_first = [&](const GroupMessage& each) { return each.position == messages.front().position; };
  const bool has_one_peer = !messages.empty() && std::ranges::all_of(messages, is_first);
  const int peer = has_one_peer ? operation.group->ranks[static_cast<size_t>(messages.front().position)] : -1;
  const RecordedOperation now{operation.group, operation.kind, operation.tensor_bytes, peer};
  if (recorded_.size() < options_.kept_operations) {
    recorded_.push_back(now);
  } else {
    recorded_[num_recorded_ % recorded_.size()] = now;
  }
  ++num_recorded_;
}

std::vector<StartedOperation> CommState::last_operations() const {
  std::vector<StartedOperation> operations;
  for (size_t i = 0; i < recorded_.size(); ++i) {
    const auto& [group, kind, bytes, peer] = recorded_[(num_recorded_ + i) % recorded_.size()];
    operations.push_back({kind, group->name, bytes, peer});
  }
  return operations;
}

}  // namespace orthant
