// Opens and closes groups, starts operations and waits for them, and composes the message of a failure.
#include "comm/comm_state.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"
#include "comm/message_group.h"
#include "comm/open_engine.h"
#include "comm/staged_group.h"

namespace orthant {
namespace {

// Returns text such as "recv from rank 3 over ring (4.0 KiB)".
std::string describe(const GroupCall& operation) {
  const bool send = std::strcmp(operation.kind, "send") == 0;
  std::string text = operation.kind;
  if (operation.messages.size() == 1) {
    const int peer = operation.group->ranks[static_cast<size_t>(operation.messages.front().position)];
    text += fmt::format(" {} rank {}", send ? "to" : "from", peer);
  }
  text += " over " + operation.group->signature;
  if (operation.tensor_bytes > 0)
    text += fmt::format(" ({})", format_bytes(static_cast<double>(operation.tensor_bytes)));
  return text;
}

// The neighbors of a rank if every collective runs over one axis, and sums and barriers over all ranks (collectives.h).
int expected_connections(const Mesh& mesh) {
  int neighbors = 2 * std::bit_width(static_cast<unsigned>(mesh.size() - 1));
  for (const Axis& axis : mesh.axes) neighbors += axis.size - 1;
  return std::min(neighbors, mesh.size() - 1);
}

}  // namespace

CommState::CommState(Mesh mesh_in, int rank_in, Rendezvous rendezvous, CommOptions options)
    : mesh(std::move(mesh_in)), rank(rank_in), rendezvous_(std::move(rendezvous)), options_(std::move(options)) {
  ORTHANT_CHECK(mesh.size() == rendezvous_.world_size && rank == rendezvous_.rank, mesh.size(), rendezvous_.world_size,
                rank, rendezvous_.rank);
  if (mesh.size() == 1) return;
  const std::string name = fmt::format("comm/{}", (*rendezvous_.comms)++);
  store_ = rendezvous_.store.under(name);
  WatchOptions watching{.heartbeat = {.timeout_s = options_.heartbeat_timeout_s}, .board = rendezvous_.board};
  if (rendezvous_.in_process) watching.period_s = 0.1;
  watching.on_failure = [this](const std::string& message, bool must_report) { on_failure(message, must_report); };
  watch_for_hangs(watching);
  watch = std::make_unique<Watch>(rendezvous_.store, name, rank, mesh.size(), options_.connect_timeout_s,
                                  std::move(watching));
  try {
    engine = open_engine(rendezvous_, store_, *watch, options_, expected_connections(mesh),
                         [this](const std::string& warning) { warn(warning); });
    watches_engine_ = true;
  } catch (...) {
    watch->leave(false);  // its thread uses members that would be destroyed before it
    throw;
  }
}

void CommState::close(bool unwinding) {
  if (!watch) return;
  const bool clean = !unwinding && finish();
  watches_engine_ = false;
  engine->stop();
  watch->leave(clean);
  if (!clean) {
    for (auto& dropped : dropped_) (void)dropped.release();
    for (auto& [signature, open_group] : groups_) {
      (void)open_group.group.release();
      for (auto& [direction, group] : open_group.directions) (void)group.release();
    }
    (void)engine.release();
    return;
  }
  dropped_.clear();
  for (auto& [signature, open_group] : groups_) open_group.directions.clear(), open_group.group.reset();
  engine.reset();
  if (rendezvous_.serves) watch->wait_for_others(options_.connect_timeout_s);
}

// Waits until this rank may leave: its own operations are done, and all other ranks report the same. Returns false if
// the run has failed instead.
bool CommState::finish() {
  constexpr double kSlice_s = 0.1;  // after each slice it checks whether the run has failed
  const auto start = Clock::now();
  RollCall drained = watch->roll_call(store_.under("drained"), options_.timeout_s);
  drained.missed = "reach the end of the run";
  drained.way_out = "look at the output of that rank";
  try {
    while (!watch->failure()) {
      if (engine->drain(kSlice_s)) {
        const auto advancing = engine->keep_advancing();
        call_roll(drained);
        return true;
      }
      if (seconds_since(start) > options_.timeout_s) {
        watch->abort_and_end(fmt::format(
            "rank {}: at the end of the run, some operations without a wait() did not complete within {:g} s", rank,
            options_.timeout_s));
      }
    }
  } catch (const MissingRanks& error) {
    watch->abort_and_end(error.what());
  } catch (const CommError&) {  // the process that served the store is gone
  }
  return false;
}

RollCall CommState::open_roll_call(const std::string& awaited) {
  if (mesh.size() == 1) return {};
  constexpr double kNoLimit_s = 1e9;
  if (!roll_call_store_) roll_call_store_ = store_.clone();
  RollCall call = watch->roll_call(roll_call_store_.under(fmt::format("call/{}", roll_calls_++)), kNoLimit_s);
  if (awaited.empty()) return call;
  call.missed = awaited;
  call.warn = [this](const std::string& warning) { warn(warning); };
  return call;
}

OpenGroup& CommState::open(const Axes& axes, at::Device device, int channel) {
  const std::string signature = mesh.joined_name(axes);
  const bool over_nccl = !device.is_cpu() && !options_.through_host_memory;
  std::string name = over_nccl ? signature + "@" + c10::DeviceTypeName(device.type(), true) : signature;
  if (channel > 0) name += fmt::format("#{}", channel);
  auto found = groups_.find(name);
  if (found != groups_.end()) return found->second;

  OpenGroup fresh{.signature = signature, .name = name, .ranks = mesh.group(rank, axes), .over_nccl = over_nccl};
  fresh.position = mesh.group_index(rank, axes);
  if (fresh.size() > 1) {
    fresh.group =
        over_nccl ? open_nccl(fresh, name, device, fresh.ranks, fresh.position) : open_cpu(fresh, axes, channel);
    if (options_.through_host_memory) fresh.group = staged_group(std::move(fresh.group), fresh.position);
  }
  const std::lock_guard lock(waiting_mutex_);
  return groups_.emplace(name, std::move(fresh)).first->second;
}

// A group's number encodes its axes and its channel, which distinguish the groups of one rank.
std::unique_ptr<Group> CommState::open_cpu(const OpenGroup& group, const Axes& axes, int channel) {
  uint32_t number = static_cast<uint32_t>(channel), bit = kNumChannels;
  for (const Axis& axis : mesh.axes) {
    if (axis.size == 1) continue;
    if (std::find(axes.begin(), axes.end(), axis.name) != axes.end()) number |= bit;
    bit *= 2;
  }
  return message_group(*engine, group.ranks, group.position, number,
                       {.is_channel = channel > 0, .in_order = options_.in_order});
}

// Waits first until all members want to open the group. NCCL would wait too, but that wait cannot be cancelled and does
// not name the missing rank.
std::unique_ptr<Group> CommState::open_nccl(const OpenGroup& group, const std::string& name, at::Device device,
                                            std::vector<int> members, int position) {
  const int size = static_cast<int>(members.size());
  const Store store = store_.under(fmt::format("group/{}/{}", name, members[0]));
  // Holds a weak reference, because threads of an abandoned group may outlive this Comm.
  const auto on_lost = [self = weak_from_this(), signature = group.signature](const std::string& reason) {
    if (const auto state = self.lock()) state->lost(signature, reason);
  };
  try {
    RollCall here = watch->roll_call(store.under("open"), options_.timeout_s);
    here.members = std::move(members);
    here.missed = "open the group over " + name;
    here.way_out = "look at the output of the ranks that it names";
    call_roll(here);
    return nccl_group(device, store, position, size, options_.timeout_s, on_lost);
  } catch (const LogicError&) {
    throw;
  } catch (const std::exception& error) {
    fail({&group, "opening the group"}, error);
  }
}

// The order of the set is the same on all members, so no ranks can wait for each other in a cycle.
void CommState::open_directions(OpenGroup& group, at::Device device, const std::set<std::pair<int, int>>& directions) {
  if (!group.over_nccl) return;
  for (const auto& [from, to] : directions) {
    ORTHANT_CHECK(from != to && from >= 0 && to >= 0 && from < group.size() && to < group.size(), from, to);
    if ((group.position != from && group.position != to) || group.directions.contains({from, to})) continue;
    const std::vector<int> members{group.ranks[static_cast<size_t>(from)], group.ranks[static_cast<size_t>(to)]};
    group.directions[{from, to}] = open_nccl(group, fmt::format("{}/{}>{}", group.name, from, to), device, members,
                                             group.position == from ? 0 : 1);
  }
}

Work CommState::start(const GroupCall& operation, const Moved& bytes,
                      const std::function<std::unique_ptr<Pending>(Group&)>& issue) {
  Work work;
  try {
    work.pending_ = issue(*operation.group->group);
  } catch (const std::exception& error) {
    fail(operation, error);
  }
  Traffic& counted = traffic[{operation.group->signature, operation.kind}];
  ++counted.calls;
  counted.bytes += bytes;
  work.state_ = shared_from_this();
  work.operation_ = operation;
  work.operation_.bytes = bytes;
  record(operation);
  count(work.operation_);
  return work;
}

void CommState::wait(Work& work) {
  auto pending = std::move(work.pending_);
  const auto start = Clock::now();
  const bool blocks = !pending->poll();
  if (blocks)
    watch->set_activity(
        fmt::format("{}{}waiting in {}", activity_, activity_.empty() ? "" : ", ", describe(work.operation_)));
  const auto set_waiting = [&](Pending* now) {
    const std::lock_guard lock(waiting_mutex_);
    waiting_ = now;
    if (!blocks) return;
    now == nullptr ? blocked_in_.reset() : void(blocked_in_ = work.operation_);
    ++progress_;
  };
  set_waiting(pending.get());
  // The run may have failed before the watch could see this wait.
  if (rendezvous_.in_process && watch->failure()) cancel_wait();
  try {
    pending->wait();
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(waiting_mutex_);  // blocked_in_ stays, for the statuses of other ranks
      waiting_ = nullptr;
    }
    keep(std::move(pending));
    fail(work.operation_, error);
  }
  set_waiting(nullptr);
  // The bytes counted must equal those of the messages.
  const Moved counted = work.operation_.bytes;
  const std::optional<Moved> moved = pending->moved_bytes();
  ORTHANT_CHECK(!moved || *moved == counted, describe(work.operation_), moved->sent, counted.sent, moved->received,
                counted.received);
  exposed_wait_s += seconds_since(start);
  if (blocks) watch->set_activity(activity_);
}

void CommState::keep(std::unique_ptr<Pending> dropped) { dropped_.push_back(std::move(dropped)); }

void CommState::set_activity(std::string activity) {
  if (!watch) return;
  watch->set_activity(activity);
  const std::lock_guard lock(waiting_mutex_);
  activity_ = std::move(activity);
  ++progress_;
}

// The reason, such as a lost connection, may name the rank long before its missing heartbeats prove that it has failed.
// So the first rank whose operation fails reports it, unless the cause is known soon. The others wait longer for that
// report.
std::string CommState::find_cause(const GroupCall& operation, const std::string& reason) {
  constexpr double kSoon_s = 0.4;
  fails_first_ = true;
  std::string known = watch->wait_for_cause(kSoon_s);
  if (watch->failure() || rendezvous_.in_process) return known;
  try {
    fails_first_ = store_.add("failed-operations", 1) == 1;
    if (fails_first_) {
      warn(fmt::format("rank {}: {} failed: {}. Looking for the cause, for at most {:g} s", rank, describe(operation),
                       reason, cause_timeout_s()));
    }
  } catch (const CommError&) {  // the process that served the store is gone, and the watch reports that
  }
  constexpr double kReport_s = 3;  // in which the first rank reads the picture and reports
  return watch->wait_for_cause(fails_first_ ? cause_timeout_s() : cause_timeout_s() + kReport_s);
}

void CommState::fail(const GroupCall& operation, const std::exception& error) {
  const std::string reason = brief(error);
  std::string known = find_cause(operation, reason);
  const std::string during = activity_.empty() ? "" : fmt::format(" during {}", activity_);
  if (const std::string seen = watch->failure() || !fails_first_ ? "" : picture(); !seen.empty()) known = seen;
  const std::string cause = watch->failure() ? known : known.empty() ? reason : fmt::format("{}; {}", reason, known);
  const bool other_program = dynamic_cast<const UnexpectedMessage*>(&error) != nullptr;
  const std::string message = fmt::format("rank {}: {} failed{}: {}{}", rank, describe(operation), during, cause,
                                          other_program ? describe_last_operations() : "");
  watch->abort(message);
  throw CommError(message);
}

// The operations before a message that was not expected, which show where two ranks begin to differ.
std::string CommState::describe_last_operations() const {
  constexpr size_t kMost = 4;
  std::vector<std::string> names;
  const std::vector<StartedOperation> all = last_operations();
  for (const auto& each : std::span(all).last(std::min(kMost, all.size())))
    names.push_back(
        fmt::format("{} over {} ({})", each.kind, each.group, format_bytes(static_cast<double>(each.bytes))));
  return names.empty() ? "" : "; the last operations that this rank started: " + join(names, ", ");
}

std::string CommState::picture() {
  try {
    return hangs_ ? read_picture(store_, mesh) : "";
  } catch (const CommError&) {  // the process that served the store is gone
    return "";
  }
}

// Runs on a thread of NCCL, while the main thread may be anywhere: wait() has already returned there.
void CommState::lost(const std::string& signature, const std::string& reason) {
  const std::string known = watch->wait_for_cause(cause_timeout_s());
  if (watch->failure()) return watch->abort_and_end(known);
  const std::string others = known.empty() ? "" : "; " + known;
  watch->abort_and_end(fmt::format("rank {}: {} over {}{}", rank, reason, signature, others));
}

void CommState::cancel_wait() {
  const std::lock_guard lock(waiting_mutex_);
  if (waiting_ != nullptr) waiting_->cancel();
}

void CommState::on_failure(const std::string& message, bool must_report) {
  if (options_.on_failure) return options_.on_failure(message, must_report);
  if (rendezvous_.in_process) return cancel_wait();
  if (must_report) fmt::print(stderr, "error: {}\n", message);
  // Does not flush, because the main thread may be blocked while it holds a stream's lock.
  _exit(kFailed);
}

}  // namespace orthant
