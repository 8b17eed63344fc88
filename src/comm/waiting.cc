// Finds for each waiting rank the ranks that it waits for, then the root, and writes the picture.
#include "comm/waiting.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/terminal_text.h"
#include "base/text.h"
#include "mesh/rank_classes.h"

namespace orthant {
namespace {

constexpr size_t kMostRanges = 6;  // of ranks in one list

std::string plain_text(const std::string& posted) {
  constexpr size_t kMostBytes = 300;
  std::string text = escape_for_terminal(posted, kMostBytes);
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// Axes of a group's name; empty if the mesh lacks one of them.
std::vector<std::string> axes_of(const Mesh& mesh, const std::string& group) {
  const std::vector<std::string> axes = split(group.substr(0, group.find_first_of("@#")), '+');
  return std::ranges::all_of(axes, [&](const auto& axis) { return mesh.has(axis); }) ? axes
                                                                                     : std::vector<std::string>();
}

// "rank 3", "ranks 0-3, 6", "ranks 0, 2, 4, 6, 8, 10 and 500 more". `ranks` must be in ascending order.
std::string list_ranks(const std::vector<int>& ranks) {
  std::vector<Range> ranges;
  for (const int rank : ranks) {
    if (ranges.empty() || ranges.back().end != rank) ranges.push_back({rank, rank});
    ++ranges.back().end;
  }
  int64_t more = 0;
  for (; ranges.size() > kMostRanges; ranges.pop_back()) more += ranges.back().size();
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", ranks_text(ranges),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string activity_text(const RankStatus& status) {
  return status.activity.empty() ? "" : fmt::format(" ({})", status.activity);
}

// An operation that some ranks wait for, and the ranks without which it cannot complete.
struct AwaitedOperation {
  std::vector<int> waiting, missing;
};

// The operations that ranks wait for. Ranks and operations are the nodes of a graph: a rank waits for its operation,
// and an operation for its missing ranks. All ranks of a collective share its node, so the graph has O(P) edges.
class WaitGraph {
 public:
  WaitGraph(const Mesh& mesh, const std::vector<RankStatus>& statuses) : mesh_(mesh), statuses_(statuses) {
    operation_of_.assign(statuses.size(), -1);
    for (const RankStatus& status : statuses)
      if (status.waits()) add(status);
  }

  const std::vector<int>& missing_for(int rank) const { return operations_[index(operation_of(rank))].missing; }
  /// All ranks that an operation waits for.
  std::set<int> missing() const {
    std::set<int> all;
    for (const AwaitedOperation& each : operations_) all.insert(each.missing.begin(), each.missing.end());
    return all;
  }
  /// Distance of each rank from the nearest rank that does not wait; -1 for a rank that leads only to a cycle.
  std::vector<int> distances() const {
    std::vector<std::vector<int>> needed_by(statuses_.size());  // operations
    std::vector<int> distance(statuses_.size(), -1);
    std::deque<int> next;
    const auto reach = [&](int rank, int at) {
      if (distance[index(rank)] >= 0) return;
      distance[index(rank)] = at;
      next.push_back(rank);
    };
    for (size_t i = 0; i < operations_.size(); ++i)
      for (const int rank : operations_[i].missing) needed_by[index(rank)].push_back(static_cast<int>(i));
    for (const RankStatus& status : statuses_)
      if (!status.waits() || missing_for(status.rank).empty()) reach(status.rank, 0);
    for (; !next.empty(); next.pop_front()) {
      const int rank = next.front();
      for (const int operation : needed_by[index(rank)])
        for (const int waiting : operations_[index(operation)].waiting) reach(waiting, distance[index(rank)] + 1);
    }
    return distance;
  }
  /// Follows from `rank` the first missing rank that is itself in or behind a cycle, and returns the cycle.
  std::vector<int> find_cycle(int rank, const std::vector<int>& distances) const {
    std::vector<int> path;
    for (auto seen = path.end(); seen == path.end(); seen = std::ranges::find(path, rank)) {
      path.push_back(rank);
      rank = *std::ranges::find_if(missing_for(rank), [&](int other) { return distances[index(other)] < 0; });
    }
    path.erase(path.begin(), std::ranges::find(path, rank));
    return path;
  }

 private:
  static size_t index(int number) { return static_cast<size_t>(number); }
  int operation_of(int rank) const { return operation_of_[index(rank)]; }

  void add(const RankStatus& status) {
    const std::vector<std::string> axes = status.number > 0 ? axes_of(mesh_, status.group) : std::vector<std::string>();
    if (axes.empty()) {
      operation_of_[index(status.rank)] = static_cast<int>(operations_.size());
      operations_.push_back({{status.rank}, missing_peers(status)});
      return;
    }
    const std::vector<int>& members = members_of(status, axes);
    const auto [known, is_new] =
        collectives_.try_emplace({status.group, members.front(), status.number}, static_cast<int>(operations_.size()));
    if (is_new) operations_.push_back({{}, missing_members(status, members)});
    operations_[index(known->second)].waiting.push_back(status.rank);
    operation_of_[index(status.rank)] = known->second;
  }

  const std::vector<int>& members_of(const RankStatus& status, const std::vector<std::string>& axes) {
    auto& number_of = group_numbers_[status.group];
    number_of.resize(statuses_.size(), -1);
    if (number_of[index(status.rank)] < 0) {
      groups_.push_back(mesh_.group(status.rank, axes));
      for (const int member : groups_.back()) number_of[index(member)] = static_cast<int>(groups_.size()) - 1;
    }
    return groups_[index(number_of[index(status.rank)])];
  }

  const StartedCounts& started_by(int rank, const std::string& group) const {
    static const StartedCounts kNone;
    const RankStatus& status = statuses_[index(rank)];
    const auto found = status.started.find(group);
    return found == status.started.end() ? kNone : found->second;
  }

  // The ranks that have not started their part of an operation. If all have, those that wait for nothing: a rank that
  // computes may hold back a small message. `parts` has each rank, and whether it has started its part.
  std::vector<int> missing_ranks_of(const std::vector<std::pair<int, bool>>& parts) const {
    std::set<int> missing, busy;
    for (const auto& [rank, has_started] : parts) {
      const RankStatus& status = statuses_[index(rank)];
      if (!has_started) missing.insert(rank);
      if (!status.waits()) busy.insert(rank);
    }
    const std::set<int>& found = missing.empty() ? busy : missing;
    return {found.begin(), found.end()};
  }

  std::vector<int> missing_members(const RankStatus& status, const std::vector<int>& members) const {
    std::vector<std::pair<int, bool>> parts;
    for (const int member : members)
      parts.emplace_back(member, started_by(member, status.group).collectives >= status.number);
    return missing_ranks_of(parts);
  }

  std::vector<int> missing_peers(const RankStatus& status) const {
    std::vector<std::pair<int, bool>> parts;
    for (const AwaitedMessage& message : status.messages) {
      const StartedCounts& started = started_by(message.peer, status.group);
      const auto& counts = message.receive ? started.sends : started.receives;
      const auto count = counts.find(status.rank);
      parts.emplace_back(message.peer, count != counts.end() && count->second >= message.number);
    }
    return missing_ranks_of(parts);
  }

  const Mesh& mesh_;
  const std::vector<RankStatus>& statuses_;
  std::vector<int> operation_of_;  // by rank; -1 if it does not wait
  std::vector<AwaitedOperation> operations_;
  std::map<std::tuple<std::string, int, int64_t>, int> collectives_;
  std::deque<std::vector<int>> groups_;
  std::map<std::string, std::vector<int>> group_numbers_;  // by name of the group, then by rank
};

// Ranks in the same state, which share a line.
struct SameState {
  std::vector<int> ranks;
  std::set<int> missing;
  const std::vector<int>* last_missing = nullptr;  // those of the last rank, which often shares its operation
  bool same_missing = true;
  double stalled_s = 0;
};

class Picture {
 public:
  Picture(const Mesh& mesh, const std::vector<RankStatus>& statuses)
      : statuses_(statuses), graph_(mesh, statuses), distances_(graph_.distances()) {}

  std::string text() {
    std::vector<std::string> lines = {first_line()};
    size_t ranks_left = 0;
    for (const auto& [key, state] : states()) {
      if (lines.size() + 1 < kMostLines) {
        lines.push_back("  " + line(state));
      } else {
        ranks_left += state.ranks.size();
      }
    }
    if (ranks_left > 0) lines.push_back(fmt::format("  {} more ranks wait", ranks_left));
    return join(lines, "\n");
  }

 private:
  const RankStatus& status(int rank) const { return statuses_[static_cast<size_t>(rank)]; }
  int distance(int rank) const { return distances_[static_cast<size_t>(rank)]; }

  std::string first_line() const {
    std::vector<int> roots, late, endless;
    size_t waiting = 0;
    for (const RankStatus& each : statuses_) {
      waiting += each.waits();
      if (distance(each.rank) < 0) endless.push_back(each.rank);
      if (distance(each.rank) == 0) (each.waits() ? late : roots).push_back(each.rank);
    }
    // A rank is a root only if some operation waits for it.
    std::erase_if(roots, [needed = graph_.missing()](int rank) { return !needed.contains(rank); });

    if (!endless.empty()) return describe_cycle(graph_.find_cycle(endless.front(), distances_));
    const auto others = [&](size_t number) {
      return fmt::format("{} {}, directly or through others,", counted(static_cast<int64_t>(number), "rank"),
                         number == 1 ? "waits" : "wait");
    };
    if (!roots.empty()) return fmt::format("{} for {}:", others(waiting), list_ranks(roots));
    const std::string what =
        fmt::format("{} {} for messages that other ranks have sent: a process or the network may be stalled",
                    list_ranks(late), late.size() == 1 ? "waits" : "wait");
    if (waiting == late.size()) return what + ":";
    return fmt::format("{} for {}; {}:", others(waiting - late.size()), list_ranks(late), what);
  }

  std::string describe_cycle(const std::vector<int>& cycle) const {
    constexpr size_t kMostSteps = 8;
    std::vector<std::string> steps;
    for (size_t i = 0; i < cycle.size() && i < kMostSteps; ++i) {
      steps.push_back(
          fmt::format("rank {} {}for rank {}", cycle[i], i == 0 ? "waits " : "", cycle[(i + 1) % cycle.size()]));
    }
    if (cycle.size() > kMostSteps) steps.push_back(fmt::format("and {} more", cycle.size() - kMostSteps));
    return fmt::format(
        "{} in a cycle, which never ends: {}:",
        cycle.size() == 1 ? "a rank waits for itself" : fmt::format("{} ranks wait for each other", cycle.size()),
        join(steps, ", "));
  }

  // Key: distance from the root, operation and group, activity. A cycle comes first.
  using Key = std::tuple<int, std::string, std::string, std::string>;
  std::map<Key, SameState> states() const {
    std::map<Key, SameState> states;
    for (const RankStatus& each : statuses_) {
      if (!each.waits() && distance(each.rank) != 0) continue;
      const auto [known, is_new] =
          states.try_emplace(Key{distance(each.rank), each.operation, each.group, each.activity});
      SameState& state = known->second;
      if (each.waits() && state.last_missing != &graph_.missing_for(each.rank)) {
        state.last_missing = &graph_.missing_for(each.rank);
        state.same_missing &= is_new || std::ranges::equal(*state.last_missing, state.missing);
        state.missing.insert(state.last_missing->begin(), state.last_missing->end());
      }
      state.ranks.push_back(each.rank);
      state.stalled_s = std::max(state.stalled_s, each.stalled_s);
    }
    return states;
  }

  std::string line(const SameState& state) const {
    const RankStatus& first = status(state.ranks.front());
    const bool one = state.ranks.size() == 1;
    const std::string ranks = list_ranks(state.ranks);
    const std::string since = fmt::format("for {:.0f} s", state.stalled_s);
    if (!first.waits() && state.stalled_s == 0) {
      return fmt::format("{} {} posted no status, so {} may make progress", ranks, one ? "has" : "have",
                         one ? "it" : "they");
    }
    if (!first.waits()) {
      return fmt::format("{} {} for no rank: {} {} in {}", ranks, one ? "waits" : "wait", since,
                         one ? "it has been" : "they have been",
                         first.activity.empty() ? "an unnamed activity" : first.activity);
    }
    const std::string missing = state.missing.empty() ? "messages that other ranks have sent,"
                                                      : list_ranks({state.missing.begin(), state.missing.end()}) +
                                                            (state.same_missing ? "" : " of their groups");
    const std::string bytes =
        first.bytes > 0 ? fmt::format(" of {}", format_bytes(static_cast<double>(first.bytes))) : "";
    return fmt::format("{} {} for {} in {}{} over {}{}, {}", ranks, one ? "waits" : "wait", missing, first.operation,
                       bytes, first.group, activity_text(first), since);
  }

  const std::vector<RankStatus>& statuses_;
  const WaitGraph graph_;
  const std::vector<int> distances_;
};

}  // namespace

void to_json(nlohmann::json& json, const AwaitedMessage& message) {
  json = {message.peer, message.receive, message.number};
}
void from_json(const nlohmann::json& json, AwaitedMessage& message) {
  message = {json.at(0).get<int>(), json.at(1).get<bool>(), json.at(2).get<int64_t>()};
}
void to_json(nlohmann::json& json, const StartedCounts& counts) {
  json = {counts.collectives, counts.sends, counts.receives};
}
void from_json(const nlohmann::json& json, StartedCounts& counts) {
  json.at(0).get_to(counts.collectives);
  json.at(1).get_to(counts.sends);
  json.at(2).get_to(counts.receives);
}

std::string to_text(const RankStatus& status) {
  nlohmann::json json;
  json["rank"] = status.rank, json["stalled_s"] = status.stalled_s, json["activity"] = status.activity;
  json["operation"] = status.operation, json["group"] = status.group, json["bytes"] = status.bytes;
  json["number"] = status.number, json["messages"] = status.messages, json["started"] = status.started;
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::optional<RankStatus> parse_rank_status(std::string_view text, int num_ranks) {
  const auto is_rank = [num_ranks](int rank) { return rank >= 0 && rank < num_ranks; };
  try {
    const auto json = nlohmann::json::parse(text);
    RankStatus status;
    json.at("rank").get_to(status.rank);
    json.at("stalled_s").get_to(status.stalled_s);
    status.activity = plain_text(json.at("activity"));
    status.operation = plain_text(json.at("operation"));
    status.group = plain_text(json.at("group"));
    json.at("bytes").get_to(status.bytes);
    json.at("number").get_to(status.number);
    json.at("messages").get_to(status.messages);
    json.at("started").get_to(status.started);
    if (!is_rank(status.rank) || !std::ranges::all_of(status.messages, is_rank, &AwaitedMessage::peer)) return {};
    return status;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string describe_waiting(const Mesh& mesh, const std::vector<RankStatus>& statuses) {
  if (std::ranges::none_of(statuses, &RankStatus::waits)) return "";
  return Picture(mesh, statuses).text();
}

}  // namespace orthant
