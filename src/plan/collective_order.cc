// Carries out the collectives of all ranks together, each rank in the order of its list, and looks for ranks that wait
// for each other.
//
// Ranks with equal lists, whose groups consist of ranks of the same classes, wait alike. Therefore one rank of each
// such kind is carried out. If the ranks wait in a cycle, so do their kinds. The reverse does not hold, so if the kinds
// do not finish, all ranks are carried out.
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

// A collective of a list, and the number of its group in Collectives::axes.
struct OrderedCollective {
  const PlannedOperation* operation;
  size_t group;
};

// The collectives of one channel.
struct Collectives {
  std::vector<std::string> axes;  // joined by "+", of each group that the lists name
  std::vector<std::vector<OrderedCollective>> by_class;
};

// By channel, as groups name it. The collectives of different channels need no common order.
std::map<std::string, Collectives> collectives_by_channel(const OperationLists& all) {
  std::map<std::string, Collectives> channels;
  for (size_t at = 0; at < all.lists.size(); ++at) {
    for (const PlannedOperation& operation : all.lists[at]) {
      if (operation.peer >= 0) continue;
      const size_t end = std::min(operation.group.find('#'), operation.group.size());
      const std::string axes = operation.group.substr(0, end);
      Collectives& channel = channels[operation.group.substr(end)];
      const auto found = std::ranges::find(channel.axes, axes);
      channel.by_class.resize(all.lists.size());
      channel.by_class[at].push_back({&operation, static_cast<size_t>(found - channel.axes.begin())});
      if (found == channel.axes.end()) channel.axes.push_back(axes);
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

// Ranks, or kinds of ranks, that carry out collectives together.
struct Walkers {
  std::vector<int> class_of;              // by walker
  std::vector<std::vector<int>> members;  // by group of Collectives::axes and walker: the number of its members
};

// Returns how many collectives each walker has done when no walker can go on.
std::vector<size_t> carry_out(const Collectives& collectives, const Walkers& walkers) {
  using Members = std::pair<size_t, int>;
  std::map<Members, std::pair<size_t, std::vector<size_t>>> groups;  // number of walkers, and those that wait
  std::vector<size_t> done(walkers.class_of.size());
  const auto list_of = [&](size_t walker) -> const std::vector<OrderedCollective>& {
    return collectives.by_class[static_cast<size_t>(walkers.class_of[walker])];
  };
  for (size_t walker = 0; walker < done.size(); ++walker) {
    std::set<size_t> own;
    for (const OrderedCollective& each : list_of(walker)) own.insert(each.group);
    for (const size_t group : own) ++groups[{group, walkers.members[group][walker]}].first;
  }
  std::deque<size_t> ready(done.size());
  std::iota(ready.begin(), ready.end(), size_t{0});
  for (; !ready.empty(); ready.pop_front()) {
    const size_t walker = ready.front();
    if (done[walker] == list_of(walker).size()) continue;
    const size_t group = list_of(walker)[done[walker]].group;
    auto& [size, waiting] = groups[{group, walkers.members[group][walker]}];
    waiting.push_back(walker);
    if (waiting.size() < size) continue;
    for (const size_t each : waiting) ++done[each], ready.push_back(each);
    waiting.clear();
  }
  return done;
}

bool all_finish(const Collectives& collectives, const Walkers& walkers, const std::vector<size_t>& done) {
  for (size_t walker = 0; walker < done.size(); ++walker) {
    if (done[walker] < collectives.by_class[static_cast<size_t>(walkers.class_of[walker])].size()) return false;
  }
  return true;
}

// One walker for each kind of ranks. The members of a group are numbered by the set of their classes.
Walkers kinds_of(const Walkers& ranks) {
  std::vector<std::vector<int>> members;  // by group and rank
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
  Walkers kinds{.class_of = {}, .members = std::vector<std::vector<int>>(members.size())};
  std::set<std::vector<int>> known;
  for (size_t rank = 0; rank < ranks.class_of.size(); ++rank) {
    std::vector<int> kind{ranks.class_of[rank]};
    for (const std::vector<int>& of_ranks : members) kind.push_back(of_ranks[rank]);
    if (!known.insert(kind).second) continue;
    kinds.class_of.push_back(kind[0]);
    for (size_t group = 0; group < members.size(); ++group) kinds.members[group].push_back(kind[group + 1]);
  }
  return kinds;
}

// Describes a cycle of ranks that wait for each other.
std::string describe_cycle(const Collectives& collectives, const Walkers& ranks, const std::vector<size_t>& done) {
  const auto next_of = [&](size_t rank) -> const OrderedCollective* {
    const auto& list = collectives.by_class[static_cast<size_t>(ranks.class_of[rank])];
    return done[rank] < list.size() ? &list[done[rank]] : nullptr;
  };
  // A member of the group in whose collective the rank waits, which waits in the collective of another group.
  const auto awaited = [&](size_t rank) {
    const std::vector<int>& members = ranks.members[next_of(rank)->group];
    for (size_t other = 0; other < done.size(); ++other) {
      const OrderedCollective* next = next_of(other);
      if (members[other] == members[rank] && next != nullptr && next->group != next_of(rank)->group) return other;
    }
    throw LogicError(fmt::format("rank {} waits for no rank: the collectives of its group must match", rank));
  };
  size_t rank = 0;
  while (next_of(rank) == nullptr) ++rank;
  std::vector<size_t> path;
  for (; std::ranges::find(path, rank) == path.end(); rank = awaited(rank)) path.push_back(rank);
  std::string text = fmt::format("rank {}", rank);
  for (auto at = std::ranges::find(path, rank); at != path.end(); ++at) {
    const OrderedCollective& next = *next_of(*at);
    const size_t other = at + 1 == path.end() ? rank : *(at + 1);
    text += fmt::format("{} waits in {} over {} for rank {}", *at == rank ? "" : ", which",
                        describe_operation(*next.operation), next.operation->group, other);
  }
  return text + ": no ranks may wait for each other in a cycle";
}

}  // namespace

std::vector<std::string> order_problems(const Mesh& mesh, const OperationLists& all) {
  std::vector<std::string> found;
  for (const auto& [channel, collectives] : collectives_by_channel(all)) {
    if (collectives.axes.size() == 1) continue;  // the members of each group have the same order
    Walkers ranks;
    for (int rank = 0; rank < mesh.size(); ++rank) ranks.class_of.push_back(all.classes.of(rank));
    for (const std::string& axes : collectives.axes) ranks.members.push_back(lowest_members(mesh, axes));
    const Walkers kinds = kinds_of(ranks);
    if (all_finish(collectives, kinds, carry_out(collectives, kinds))) continue;
    const std::vector<size_t> done = carry_out(collectives, ranks);
    if (!all_finish(collectives, ranks, done)) found.push_back(describe_cycle(collectives, ranks, done));
  }
  return found;
}

}  // namespace orthant
