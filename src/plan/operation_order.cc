// Simulates the operations of all ranks together, each rank in the order of its list, and looks for ranks that wait for
// each other.
//
// Ranks with equal lists, whose groups consist of ranks of the same classes, wait alike. Therefore one rank stands for
// all of them. If the ranks wait in a cycle, so do those that stand for them. The reverse does not hold, so if these do
// not finish, all ranks are simulated.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "base/errors.h"
#include "base/text.h"
#include "plan/planned_operations.h"

namespace orthant {
namespace {

// A collective waits for all members of its group, a send for nothing, and a recv for its send.
enum class Waits { for_all, for_none, for_send };

struct OrderedOperation {
  const PlannedOperation* operation;
  size_t group;  // index in ChannelOperations::axes_of_group
  Waits waits;
};

// The operations of one channel, with its groups and their axes numbered in the order in which they are found.
struct ChannelOperations {
  std::map<std::string, size_t> axes;    // joined by "+"
  std::map<std::string, size_t> groups;  // by name: see group_name()
  std::vector<size_t> axes_of_group;
  std::vector<std::vector<OrderedOperation>> by_class;
  std::vector<std::set<size_t>> groups_of;  // by class: the groups of its operations
};

// The name of the group of an operation, without its channel, and what the operation waits for, on a rank at this
// pipeline position. The messages of each direction between two ranks have a group of their own, as NCCL has a
// communicator for each. Only two members of the pipeline group take part in an exchange, so these two are its group.
std::pair<std::string, Waits> group_and_wait(const PlannedOperation& operation, int here) {
  const int peer = operation.peer;
  const std::string axes = operation.group.substr(0, operation.group.find('#'));
  if (peer < 0) return {axes, Waits::for_all};
  if (operation.kind == "send") return {fmt::format("{} {}>{}", axes, here, peer), Waits::for_none};
  if (operation.kind == "recv") return {fmt::format("{} {}>{}", axes, peer, here), Waits::for_send};
  return {fmt::format("{} {}-{}", axes, std::min(here, peer), std::max(here, peer)), Waits::for_all};
}

size_t number_of(std::map<std::string, size_t>& numbers, const std::string& name) {
  return numbers.try_emplace(name, numbers.size()).first->second;
}

// By channel, as groups name it. The operations of different channels need no common order. A receive counts at the
// index of its Action and not where it is posted, because a computation waits for it then at the earliest.
std::map<std::string, ChannelOperations> operations_by_channel(const Mesh& mesh, const OperationLists& all) {
  std::map<std::string, ChannelOperations> channels;
  for (size_t at = 0; at < all.lists.size(); ++at) {
    const int rank = all.classes.first_rank(static_cast<int>(at));
    const int here = mesh.has(kPipeline) ? mesh.coord(rank, kPipeline) : 0;
    std::vector<const PlannedOperation*> list;
    for (const PlannedOperation& operation : all.lists[at]) list.push_back(&operation);
    std::ranges::stable_sort(list, {}, [](const PlannedOperation* operation) { return operation->action_index; });
    for (const PlannedOperation* operation : list) {
      const size_t end = std::min(operation->group.find('#'), operation->group.size());
      ChannelOperations& channel = channels[operation->group.substr(end)];
      const auto [name, waits] = group_and_wait(*operation, here);
      const size_t group = number_of(channel.groups, name);
      channel.axes_of_group.resize(channel.groups.size());
      channel.axes_of_group[group] = number_of(channel.axes, operation->group.substr(0, end));
      channel.by_class.resize(all.lists.size());
      channel.groups_of.resize(all.lists.size());
      channel.by_class[at].push_back({operation, group, waits});
      channel.groups_of[at].insert(group);
    }
  }
  return channels;
}

// The lowest rank of each rank's group over the axes.
std::vector<int> lowest_members(const Mesh& mesh, const std::string& axes) {
  const GroupPositions positions(mesh, split(axes, '+'));
  std::vector<int> lowest;
  for (int rank = 0; rank < mesh.size(); ++rank) lowest.push_back(rank - positions.rank_at(positions.of(rank)));
  return lowest;
}

// Ranks that are simulated together. Each stands for itself, or for all ranks that wait as it does.
struct SimulatedRanks {
  std::vector<int> class_of;              // by simulated rank
  std::vector<std::vector<int>> members;  // by axes and simulated rank: a number that the members of a group share
};

class OrderSimulation {
 public:
  OrderSimulation(const ChannelOperations& operations, const SimulatedRanks& ranks)
      : operations_(operations), ranks_(ranks), done_(ranks.class_of.size()) {
    for (size_t rank = 0; rank < done_.size(); ++rank) {
      for (const size_t group : operations.groups_of[class_of(rank)]) ++communicator(rank, group).size;
      for (const OrderedOperation& each : list_of(rank)) {
        if (each.waits == Waits::for_none) communicator(rank, each.group).sent.try_emplace(rank, 0);
      }
    }
  }

  // Returns how many operations each rank has done when no rank can go on.
  std::vector<size_t> run() {
    ready_.resize(done_.size());
    std::iota(ready_.begin(), ready_.end(), size_t{0});
    for (; !ready_.empty(); ready_.pop_front()) advance(ready_.front());
    return std::move(done_);
  }

 private:
  // A group with its simulated members.
  struct Communicator {
    size_t size = 0;
    std::vector<size_t> waiting;
    std::map<size_t, int> sent;  // by sender: its sends so far
  };

  size_t class_of(size_t rank) const { return static_cast<size_t>(ranks_.class_of[rank]); }
  const std::vector<OrderedOperation>& list_of(size_t rank) const { return operations_.by_class[class_of(rank)]; }
  Communicator& communicator(size_t rank, size_t group) {
    return communicators_[{group, ranks_.members[operations_.axes_of_group[group]][rank]}];
  }

  // Carries out the next operations of the rank until it must wait.
  void advance(size_t rank) {
    while (done_[rank] < list_of(rank).size()) {
      const OrderedOperation& next = list_of(rank)[done_[rank]];
      Communicator& own = communicator(rank, next.group);
      if (must_wait(rank, next, own)) {
        own.waiting.push_back(rank);
        return;
      }
      if (next.waits == Waits::for_send) ++received_[{rank, next.group}];
      if (next.waits == Waits::for_none) ++own.sent.at(rank);
      ++done_[rank];
      if (next.waits != Waits::for_send) wake(own, next.waits == Waits::for_all);
    }
  }

  // A receiver may stand for several ranks, so it waits until every sender has sent.
  bool must_wait(size_t rank, const OrderedOperation& next, const Communicator& own) {
    if (next.waits == Waits::for_none) return false;
    if (next.waits == Waits::for_all) return own.waiting.size() + 1 < own.size;
    const int received = received_[{rank, next.group}];
    return std::ranges::any_of(own.sent, [&](const auto& each) { return each.second <= received; });
  }

  // The ranks that wait try again, or have completed their collective.
  void wake(Communicator& own, bool completes) {
    for (const size_t each : own.waiting) {
      done_[each] += completes ? 1 : 0;
      ready_.push_back(each);
    }
    own.waiting.clear();
  }

  const ChannelOperations& operations_;
  const SimulatedRanks& ranks_;
  std::vector<size_t> done_;  // by rank
  std::map<std::pair<size_t, int>, Communicator> communicators_;
  std::map<std::pair<size_t, size_t>, int> received_;  // by rank and group
  std::deque<size_t> ready_;
};

bool all_finish(const ChannelOperations& operations, const SimulatedRanks& ranks, const std::vector<size_t>& done) {
  for (size_t rank = 0; rank < done.size(); ++rank) {
    if (done[rank] < operations.by_class[static_cast<size_t>(ranks.class_of[rank])].size()) return false;
  }
  return true;
}

// One rank for all that wait alike. The members of a group are numbered by the set of their classes.
SimulatedRanks representatives_of(const SimulatedRanks& ranks) {
  std::vector<std::vector<int>> members;  // by axes and rank
  for (const std::vector<int>& lowest : ranks.members) {
    std::vector<std::set<int>> classes(lowest.size());
    for (size_t rank = 0; rank < lowest.size(); ++rank) {
      classes[static_cast<size_t>(lowest[rank])].insert(ranks.class_of[rank]);
    }
    std::map<std::set<int>, int> numbers;
    members.emplace_back();
    for (const int rank : lowest) {
      const auto next = static_cast<int>(numbers.size());
      members.back().push_back(numbers.try_emplace(classes[static_cast<size_t>(rank)], next).first->second);
    }
  }
  SimulatedRanks representatives{.class_of = {}, .members = std::vector<std::vector<int>>(members.size())};
  std::set<std::vector<int>> known;
  for (size_t rank = 0; rank < ranks.class_of.size(); ++rank) {
    std::vector<int> alike{ranks.class_of[rank]};
    for (const std::vector<int>& of_ranks : members) alike.push_back(of_ranks[rank]);
    if (!known.insert(alike).second) continue;
    representatives.class_of.push_back(alike[0]);
    for (size_t axes = 0; axes < members.size(); ++axes) representatives.members[axes].push_back(alike[axes + 1]);
  }
  return representatives;
}

// Describes a cycle of ranks that wait for each other.
std::string describe_cycle(const ChannelOperations& operations, const SimulatedRanks& ranks,
                           const std::vector<size_t>& done) {
  const auto class_of = [&](size_t rank) { return static_cast<size_t>(ranks.class_of[rank]); };
  const auto next_of = [&](size_t rank) -> const OrderedOperation* {
    const auto& list = operations.by_class[class_of(rank)];
    return done[rank] < list.size() ? &list[done[rank]] : nullptr;
  };
  // The rank from which a message must come; or a member of the group in whose collective the rank waits, which waits
  // in an operation of another group.
  const auto awaited = [&](size_t rank) {
    const OrderedOperation& own = *next_of(rank);
    const std::vector<int>& members = ranks.members[operations.axes_of_group[own.group]];
    for (size_t other = 0; other < done.size(); ++other) {
      const OrderedOperation* next = next_of(other);
      if (members[other] != members[rank] || next == nullptr || next->group == own.group) continue;
      if (other != rank && operations.groups_of[class_of(other)].contains(own.group)) return other;
    }
    throw LogicError(fmt::format("rank {} waits for no rank: the operations of its group must match", rank));
  };
  size_t rank = 0;
  while (next_of(rank) == nullptr) ++rank;
  std::vector<size_t> path;
  for (; std::ranges::find(path, rank) == path.end(); rank = awaited(rank)) path.push_back(rank);
  std::string text = fmt::format("rank {}", rank);
  for (auto at = std::ranges::find(path, rank); at != path.end(); ++at) {
    const PlannedOperation& next = *next_of(*at)->operation;
    const size_t other = at + 1 == path.end() ? rank : *(at + 1);
    text += fmt::format("{} waits in {} over {} for rank {}", *at == rank ? "" : ", which", describe_operation(next),
                        next.group, other);
  }
  return text + ": no ranks may wait for each other in a cycle";
}

}  // namespace

std::vector<std::string> order_problems(const Mesh& mesh, const OperationLists& all) {
  std::vector<std::string> found;
  for (const auto& [channel, operations] : operations_by_channel(mesh, all)) {
    if (operations.groups.size() == 1) continue;  // all members have the same order
    SimulatedRanks ranks{.class_of = {}, .members = std::vector<std::vector<int>>(operations.axes.size())};
    for (int rank = 0; rank < mesh.size(); ++rank) ranks.class_of.push_back(all.classes.of(rank));
    for (const auto& [axes, number] : operations.axes) ranks.members[number] = lowest_members(mesh, axes);
    const SimulatedRanks representatives = representatives_of(ranks);
    if (all_finish(operations, representatives, OrderSimulation(operations, representatives).run())) continue;
    const std::vector<size_t> done = OrderSimulation(operations, ranks).run();
    if (!all_finish(operations, ranks, done)) found.push_back(describe_cycle(operations, ranks, done));
  }
  return found;
}

}  // namespace orthant
