// Compares the lists of neighboring ranks along every axis of the mesh. If all neighbors have equal lists, all members
// of a group do.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/text.h"
#include "plan/planned_operations.h"
#include "schedule/progress.h"

namespace orthant {
namespace {

constexpr size_t kMostProblems = 10;

using Operations = std::vector<const PlannedOperation*>;

// The operations of one class, in order: collectives by group, and messages by direction and peer.
struct SortedOperations {
  std::map<std::string, Operations> collectives;
  std::map<std::pair<std::string, int>, Operations> messages;  // by kind and pipeline rank of the other side
};

SortedOperations sort_operations(const std::vector<PlannedOperation>& list) {
  SortedOperations sorted;
  for (const PlannedOperation& operation : list) {
    Operations& operations =
        operation.peer >= 0 ? sorted.messages[{operation.kind, operation.peer}] : sorted.collectives[operation.group];
    operations.push_back(&operation);
  }
  return sorted;
}

std::string describe_or_none(const Operations& operations, size_t index) {
  return index < operations.size() ? describe_operation(*operations[index]) : "none";
}

bool same_bytes(int64_t one, int64_t other) { return one == other || one < 0 || other < 0; }

bool same_collective(const PlannedOperation& one, const PlannedOperation& other) {
  return one.kind == other.kind && same_bytes(one.bytes, other.bytes);
}

bool matches(const PlannedOperation& sent, const PlannedOperation& received) {
  if (!same_bytes(sent.bytes, received.bytes)) return false;
  return !is_message(sent.action) || matching_message(sent.action) == received.action;
}

template <typename Equal>
size_t first_difference(const Operations& one, const Operations& other, const Equal& equal) {
  const auto [end, ignored] = std::mismatch(one.begin(), one.end(), other.begin(), other.end(),
                                            [&](const auto* a, const auto* b) { return equal(*a, *b); });
  return static_cast<size_t>(end - one.begin());
}

bool names_axis(const std::string& group, const std::string& axis) {
  const std::vector<std::string> axes = split(group.substr(0, group.find('#')), '+');
  return std::ranges::find(axes, axis) != axes.end();
}

// Calls compare(rank, next) once for each pair of classes of two ranks that are neighbors along the axis.
template <typename Compare>
void for_each_pair(const Mesh& mesh, const RankClasses& classes, const std::string& axis, const Compare& compare) {
  std::set<std::pair<int, int>> known;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int coord = mesh.coord(rank, axis);
    if (coord + 1 == mesh.axis_size(axis)) continue;
    const int next = mesh.rank_at(rank, axis, coord + 1);
    if (known.emplace(classes.of(rank), classes.of(next)).second) compare(rank, next);
  }
}

class OperationCheck {
 public:
  OperationCheck(const Mesh& mesh, const OperationLists& all) : mesh_(mesh), all_(all) {
    for (const auto& list : all.lists) sorted_.push_back(sort_operations(list));
  }

  std::vector<std::string> run() {
    check_members();
    for (const Axis& axis : mesh_.axes) {
      if (axis.size == 1) continue;
      for_each_pair(mesh_, all_.classes, axis.name,
                    [&](int rank, int next) { compare_collectives(axis.name, rank, next); });
    }
    if (mesh_.has(kPipeline)) check_messages();
    if (found_.empty()) found_ = order_problems(mesh_, all_);
    found_.resize(std::min(found_.size(), kMostProblems));
    return found_;
  }

 private:
  const SortedOperations& of(int rank) const { return sorted_[static_cast<size_t>(all_.classes.of(rank))]; }

  // The axes of a group, and the other side of a message, must exist.
  void check_members() {
    for (size_t at = 0; at < all_.lists.size(); ++at) {
      const int rank = all_.classes.first_rank(static_cast<int>(at));
      for (const auto& [group, operations] : sorted_[at].collectives) {
        for (const std::string& axis : split(group.substr(0, group.find('#')), '+')) {
          if (mesh_.has(axis)) continue;
          found_.push_back(fmt::format("rank {}: {} is over {}, but the mesh {} has no such axis", rank,
                                       describe_operation(*operations.front()), group, to_string(mesh_)));
        }
      }
      for (const auto& [key, operations] : sorted_[at].messages) {
        const int ranks = mesh_.axis_size(kPipeline), here = mesh_.has(kPipeline) ? mesh_.coord(rank, kPipeline) : 0;
        if (key.second < ranks && key.second != here) continue;
        found_.push_back(fmt::format("rank {}: {} is with pipeline rank {}, but the other side must be another of {}",
                                     rank, describe_operation(*operations.front()), key.second,
                                     counted(ranks, "pipeline rank")));
      }
    }
  }

  void compare_collectives(const std::string& axis, int rank, int next) {
    const SortedOperations &one = of(rank), &other = of(next);
    std::set<std::string> groups;
    for (const auto* each : {&one, &other})
      for (const auto& [group, operations] : each->collectives)
        if (names_axis(group, axis)) groups.insert(group);
    const auto operations_of = [](const SortedOperations& sorted, const std::string& group) {
      const auto found = sorted.collectives.find(group);
      return found == sorted.collectives.end() ? Operations() : found->second;
    };
    for (const std::string& group : groups) {
      const Operations own = operations_of(one, group), others = operations_of(other, group);
      const size_t at = first_difference(own, others, same_collective);
      if (at == own.size() && at == others.size()) continue;
      found_.push_back(fmt::format(
          "rank {}: collective {} of a step over {} is {}, but rank {} has {}: all members of a group must start the "
          "same collectives, with equal bytes, in the same order",
          rank, at + 1, group, describe_or_none(own, at), next, describe_or_none(others, at)));
    }
  }

  void check_messages() {
    std::set<std::pair<int, int>> known;
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      for (const auto& [key, operations] : of(rank).messages) {
        const int other = mesh_.rank_at(rank, kPipeline, key.second % mesh_.axis_size(kPipeline));
        if (!known.insert(std::minmax({all_.classes.of(rank), all_.classes.of(other)})).second) continue;
        compare_messages(rank, other, "send", "recv");
        compare_messages(other, rank, "send", "recv");
        compare_messages(rank, other, "exchange", "exchange");
      }
    }
  }

  void compare_messages(int from, int to, const char* sends, const char* receives) {
    const auto messages = [&](int rank, int peer, const char* kind) {
      const auto found = of(rank).messages.find({kind, mesh_.coord(peer, kPipeline)});
      return found == of(rank).messages.end() ? Operations() : found->second;
    };
    const Operations sent = messages(from, to, sends), received = messages(to, from, receives);
    const size_t at = first_difference(sent, received, matches);
    if (at == sent.size() && at == received.size()) return;
    found_.push_back(fmt::format(
        "rank {}: message {} of a step to rank {} over {} is {}, but rank {} expects {}: every send must have one "
        "receive with equal bytes, in the same order",
        from, at + 1, to, kPipeline, describe_or_none(sent, at), to, describe_or_none(received, at)));
  }

  const Mesh& mesh_;
  const OperationLists& all_;
  std::vector<SortedOperations> sorted_;  // by class
  std::vector<std::string> found_;
};

// The collectives within blocks for one microbatch that are over the axis: kinds and numbers of calls.
std::vector<std::pair<std::string, int64_t>> block_calls(const MicrobatchCosts& costs, const std::string& axis) {
  std::vector<std::pair<std::string, int64_t>> calls;
  for (const auto* messages :
       {&costs.attention.forward, &costs.attention.backward, &costs.tensor.block_forward, &costs.tensor.block_repeated,
        &costs.tensor.block_backward, &costs.tensor.block_split, &costs.tensor.embedding_forward,
        &costs.tensor.loss_forward, &costs.tensor.loss_backward, &costs.tensor.embedding_backward,
        &costs.slice.embedding, &costs.slice.head, &costs.slice.norm})
    for (const Messages& m : *messages)
      if (names_axis(m.axis, axis)) calls.emplace_back(m.collective, m.calls);
  return calls;
}

}  // namespace

std::string describe_operation(const PlannedOperation& operation) {
  const std::string bytes = operation.bytes < 0 ? "" : " of " + format_bytes(static_cast<double>(operation.bytes));
  return fmt::format("{}{} in {}", operation.kind, bytes, to_string(operation.action));
}

std::vector<std::string> operation_problems(const Mesh& mesh, const OperationLists& all) {
  return OperationCheck(mesh, all).run();
}

std::vector<std::string> block_problems(const Mesh& mesh, const RankClasses& classes,
                                        const std::vector<RankValues>& ranks) {
  std::vector<std::string> found;
  const auto compare = [&](const std::string& axis, int rank, int next) {
    const RankValues &one = ranks[static_cast<size_t>(classes.of(rank))],
                     &other = ranks[static_cast<size_t>(classes.of(next))];
    for (size_t m = 0; m < one.data_shard.microbatches.size(); ++m) {
      const int64_t own = one.data_shard.microbatches[m].size(), others = other.data_shard.microbatches[m].size();
      const auto calls = [&](const RankValues& values, int64_t sequences) {
        return sequences == 0 ? decltype(block_calls({}, axis))()
                              : block_calls(values.microbatches->at(sequences), axis);
      };
      const auto own_calls = calls(one, own), other_calls = calls(other, others);
      if (own_calls == other_calls && (own == others || own_calls.empty())) continue;
      found.push_back(fmt::format(
          "rank {}: the blocks start {} in microbatch {} over {} with {}, but those of rank {} start {} with {}: "
          "members of a group must start the same collectives for equal numbers of sequences",
          rank, counted(std::ssize(own_calls), "kind of collective"), m, axis, counted(own, "sequence"), next,
          std::ssize(other_calls), counted(others, "sequence")));
      return;
    }
  };
  for (const Axis& axis : mesh.axes) {
    if (axis.size == 1 || axis.name == kPipeline) continue;
    for_each_pair(mesh, classes, axis.name, [&](int rank, int next) { compare(axis.name, rank, next); });
  }
  found.resize(std::min(found.size(), kMostProblems));
  return found;
}

void check_operations(const ParameterPlacement& plan) {
  const RankTable ranks(plan, ParameterShards(plan));
  OperationLists all{.classes = ranks.classes()};
  for (const RankValues& values : ranks.values()) all.lists.push_back(planned_operations(plan, values));
  std::vector<std::string> found = operation_problems(plan.mesh, all);
  for (std::string& problem : block_problems(plan.mesh, ranks.classes(), ranks.values()))
    found.push_back(std::move(problem));
  for (const Stop& stop : stops(plan.schedule)) {
    const Action& action = plan.schedule.rows[static_cast<size_t>(stop.rank)][static_cast<size_t>(stop.index)];
    found.push_back(
        fmt::format("pipeline rank {}: {} waits forever for {}: no ranks may wait for each other in a cycle", stop.rank,
                    to_string(action), to_string(stop.needed)));
    if (found.size() >= kMostProblems) break;
  }
  if (!found.empty()) throw LogicError("the operations of the plan's ranks do not match:\n  " + join(found, "\n  "));
}

}  // namespace orthant
