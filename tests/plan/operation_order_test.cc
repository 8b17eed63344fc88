// Ranks that would wait for each other in operations of different groups are found: in plans with two operations
// swapped on one rank, and in random lists, compared with a search for a cycle in the graph of all operations.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "plan/plan.h"
#include "plan/planned_operations.h"
#include "tests/support/says.h"

namespace orthant::operation_order_test {
namespace {

using Words = std::vector<std::string>;

std::vector<std::string> axes_of(const std::string& group) {
  std::vector<std::string> axes{""};
  for (const char c : group.substr(0, group.find('#'))) {
    if (c == '+') {
      axes.emplace_back();
    } else {
      axes.back() += c;
    }
  }
  return axes;
}

// The oracle: whether the graph of all operations has a cycle. There is an edge from each operation of a rank to the
// rank's next one on the same channel, unless the first is a send, and from each send to its receive. The members of a
// group share the node of a collective.
bool has_cycle(const Mesh& mesh, const OperationLists& all) {
  using Node = std::tuple<std::string, int, int>;  // group, lowest member, number of the operation in that group
  std::map<Node, std::set<Node>> next;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::map<std::string, int> counts;
    std::map<std::string, std::vector<Node>> before;  // by channel: the last operation that is not a send
    std::vector<PlannedOperation> list = all.lists[static_cast<size_t>(all.classes.of(rank))];
    std::ranges::stable_sort(list, {}, &PlannedOperation::action_index);
    for (const PlannedOperation& operation : list) {
      const std::string& group = operation.group;
      const std::string channel = group.substr(std::min(group.find('#'), group.size()));
      const int lowest = mesh.group(rank, axes_of(group)).front();
      const int here = operation.peer < 0 ? 0 : mesh.coord(rank, kPipeline), peer = operation.peer;
      const auto message = [&](const char* side, int from, int to) {
        const std::string name = fmt::format("{} {} {}", side, from, to);
        return Node{name, lowest, counts[name]++};
      };
      const bool sends = operation.kind == "send";
      const Node node = sends                      ? message("send", here, peer)
                        : operation.kind == "recv" ? message("recv", peer, here)
                        : operation.kind != "exchange"
                            ? Node{group, lowest, counts[group]++}
                            : message("exchange", std::min(here, peer), std::max(here, peer));
      if (sends) next[node].insert({fmt::format("recv {} {}", here, peer), lowest, std::get<2>(node)});
      next[node];
      std::vector<Node>& last = before[channel];
      if (!last.empty()) next[last[0]].insert(node);
      if (!sends) last = {node};
    }
  }
  std::map<Node, int> states;  // 1: being visited, 2: visited
  const std::function<bool(const Node&)> reaches_itself = [&](const Node& node) {
    if (states[node] != 0) return states[node] == 1;
    states[node] = 1;
    for (const Node& other : next.at(node)) {
      if (reaches_itself(other)) return true;
    }
    states[node] = 2;
    return false;
  };
  return std::ranges::any_of(next, [&](const auto& each) { return reaches_itself(each.first); });
}

PlannedOperation collective(const std::string& group) {
  return {.action = {ActionKind::STEP}, .kind = "all_reduce", .group = group, .bytes = 4096};
}

OperationLists lists(const std::vector<int>& class_of_rank, const std::vector<Words>& groups_by_class) {
  OperationLists all{.classes = RankClasses(class_of_rank)};
  for (const Words& groups : groups_by_class) {
    all.lists.emplace_back();
    for (const std::string& group : groups) all.lists.back().push_back(collective(group));
  }
  return all;
}

TEST(OperationOrder, AnotherOrderIsADeadlockOnlyIfAllWaitInACycle) {
  const Mesh mesh({{"column", 2}, {"data", 2}});
  const Words order{"column", "data"}, other{"data", "column"};
  // Ranks 1 and 2 start with data, ranks 0 and 3 with column: each waits for the next.
  const auto problems = operation_problems(mesh, lists({0, 1, 1, 0}, {order, other}));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(
      says(problems[0], {"rank 0 waits in all_reduce of 4.0 KiB in 0STEP over column for rank 1, which waits in",
                         "over data for rank 3, which waits", "over column for rank 2, which waits",
                         "over data for rank 0: no ranks may wait for each other in a cycle"}));
  // If only rank 1 does so, ranks 2 and 3 finish column, rank 3 then meets rank 1 in data, and all finish.
  EXPECT_EQ(operation_problems(mesh, lists({0, 1, 0, 0}, {order, other})), Words{});
  EXPECT_EQ(operation_problems(mesh, lists({0, 1, 0, 1}, {order, other})), Words{});
  // Channels have no common order.
  EXPECT_EQ(operation_problems(mesh, lists({0, 1, 1, 0}, {{"column", "data#1"}, {"data#1", "column"}})), Words{});
  EXPECT_EQ(operation_problems(mesh, lists({0, 1, 1, 0}, {{"column#1", "data#1"}, {"data#1", "column#1"}})).size(), 1u);
}

TEST(OperationOrder, OfRandomListsIsJudgedAsByTheGraph) {
  const Mesh mesh({{"column", 2}, {"ring", 2}, {"data", 3}});
  std::mt19937 draw(1);
  int cycles = 0, none = 0;
  for (int i = 0; i < 2000; ++i) {
    const int classes = 2 + static_cast<int>(draw() % 3);
    std::vector<int> class_of_rank;
    for (int rank = 0; rank < 12; ++rank) {
      class_of_rank.push_back(rank < classes ? rank : static_cast<int>(draw() % static_cast<unsigned>(classes)));
    }
    Words groups{"column", "ring", "data", "column+ring"};
    groups.resize(2 + draw() % 3);
    groups.push_back(groups.front());
    std::vector<Words> orders;
    for (int of_class = 0; of_class < classes; ++of_class) {
      orders.push_back(groups);
      for (unsigned swaps = draw() % 3; swaps > 0; --swaps) {
        std::swap(orders.back()[draw() % groups.size()], orders.back()[draw() % groups.size()]);
      }
    }
    const OperationLists all = lists(class_of_rank, orders);
    const bool expected = has_cycle(mesh, all);
    ASSERT_EQ(!operation_problems(mesh, all).empty(), expected) << i;
    ++(expected ? cycles : none);
  }
  EXPECT_GT(cycles, 300);
  EXPECT_GT(none, 300);
}

PlannedOperation message(const char* kind, int peer) {
  return {.action = {ActionKind::STEP}, .kind = kind, .group = "pipeline", .bytes = 4096, .peer = peer};
}

TEST(OperationOrder, MessagesAndCollectivesTogetherAreADeadlock) {
  const Mesh mesh({{"pipeline", 2}, {"data", 2}});
  ASSERT_EQ(mesh.rank_at(0, "pipeline", 1), 1);
  const PlannedOperation sum = collective("data");
  const std::vector<PlannedOperation> sum_then_send{sum, message("send", 1)}, send_then_sum{message("send", 1), sum},
      receive_then_sum{message("recv", 0), sum}, sum_then_receive{sum, message("recv", 0)};
  const auto problems_of = [&](const std::vector<std::vector<PlannedOperation>>& by_rank) {
    return operation_problems(mesh, {.classes = RankClasses(std::vector{0, 1, 2, 3}), .lists = by_rank});
  };
  // Ranks 0 and 2 sum over data before they send, ranks 1 and 3 receive before they sum: no one waits in a cycle.
  EXPECT_EQ(problems_of({sum_then_send, receive_then_sum, sum_then_send, receive_then_sum}), Words{});
  EXPECT_EQ(problems_of({send_then_sum, sum_then_receive, send_then_sum, receive_then_sum}), Words{});
  // Two messages that cross are none either, because a send waits for nothing.
  EXPECT_EQ(problems_of({{message("send", 1), message("recv", 1)},
                         {message("send", 0), message("recv", 0)},
                         {message("send", 1), message("recv", 1)},
                         {message("send", 0), message("recv", 0)}}),
            Words{});
  const std::vector<PlannedOperation> receives_first{message("recv", 1), message("send", 1)};
  EXPECT_EQ(problems_of({receives_first,
                         {message("recv", 0), message("send", 0)},
                         receives_first,
                         {message("send", 0), message("recv", 0)}})
                .size(),
            1u);
  // Rank 0 sums with rank 2 first, which waits for a message of rank 3, which sums with rank 1 first, which waits for a
  // message of rank 0.
  const auto problems =
      problems_of({sum_then_send, receive_then_sum, {message("recv", 1), sum}, {sum, message("send", 0)}});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(
      says(problems[0], {"rank 0 waits in all_reduce of 4.0 KiB in 0STEP over data for rank 2, which waits in recv",
                         "over pipeline for rank 3, which waits in all_reduce", "over data for rank 1",
                         "over pipeline for rank 0: no ranks may wait for each other in a cycle"}));
}

TEST(OperationOrder, OfRandomListsWithMessagesIsJudgedAsByTheGraph) {
  const Mesh mesh({{"pipeline", 3}, {"data", 2}});
  std::mt19937 draw(1);
  int cycles = 0, none = 0;
  for (int i = 0; i < 2000; ++i) {
    // Ranks at one pipeline position have lists of the same operations; some have the same order.
    std::vector<int> class_of_rank(6);
    OperationLists all;
    for (int rank = 0; rank < 6; ++rank) {
      const int here = mesh.coord(rank, "pipeline");
      if (rank >= 3 && draw() % 2 == 0) {
        class_of_rank[static_cast<size_t>(rank)] = class_of_rank[static_cast<size_t>(rank - 3)];
        continue;
      }
      class_of_rank[static_cast<size_t>(rank)] = static_cast<int>(all.lists.size());
      std::vector<PlannedOperation> list{collective("data")};
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        if (here > 0) list.push_back(message("recv", here - 1));
        if (here < 2) list.push_back(message("send", here + 1));
      }
      if (here < 2) list.push_back(message("recv", here + 1));
      if (here > 0) list.push_back(message("send", here - 1));
      list.push_back(collective("data"));
      if (here != 1) list.push_back(message("exchange", 2 - here));
      for (unsigned swaps = draw() % 3; swaps > 0; --swaps)
        std::swap(list[draw() % list.size()], list[draw() % list.size()]);
      all.lists.push_back(std::move(list));
    }
    all.classes = RankClasses(class_of_rank);
    const bool expected = has_cycle(mesh, all);
    ASSERT_EQ(!operation_problems(mesh, all).empty(), expected) << i;
    ++(expected ? cycles : none);
  }
  EXPECT_GT(cycles, 300);
  EXPECT_GT(none, 300);
}

// Swaps two operations of different groups that follow each other on one rank. The other laws hold for these lists.
TEST(OperationOrder, SwappedOperationsOfPlansAreFound) {
  const std::string p = "parallelism.";
  std::mt19937 draw(1);
  int found = 0, harmless = 0;
  for (const Words& keys :
       std::vector<Words>{{p + "zero_stage=2", p + "data_parallel_replicate_degree=2"},
                          {p + "zero_stage=1", p + "data_parallel_replicate_degree=2", "optimizer.name=muon"},
                          {p + "zero_stage=3", p + "pipeline_parallel_degree=2"},
                          {p + "pipeline_parallel_degree=4"},
                          {p + "zero_stage=1", p + "tensor_parallel_degree=2", "optimizer.name=muon"}}) {
    Words words = {"model.hidden_size=32",         "model.intermediate_size=64",  "model.num_attention_heads=8",
                   "model.num_key_value_heads=4",  "model.num_hidden_layers=4",   "training.seq_len=32",
                   "training.local_batch_size=1",  "parallelism.bucket_mib=0.01", "run.ranks=8",
                   "training.global_batch_size=16"};
    words.insert(words.end(), keys.begin(), keys.end());
    const Plan plan = make_plan(parse_config("", "run.toml", words), {.ranks = 8, .vocab_size = 260});
    const RankTable table(plan, ParameterShards(plan));
    std::vector<int> labels(8);
    std::iota(labels.begin(), labels.end(), 0);
    OperationLists good{.classes = RankClasses(labels)};
    for (const int rank : labels) {
      const RankValues& values = table.values()[static_cast<size_t>(table.classes().of(rank))];
      good.lists.push_back(planned_operations(plan, values));
    }
    ASSERT_EQ(operation_problems(plan.mesh, good), Words{});
    int of_plan = 0;
    for (int i = 0; i < 300; ++i) {
      OperationLists bad = good;
      auto& list = bad.lists[draw() % 8];
      std::ranges::stable_sort(list, {}, &PlannedOperation::action_index);
      const size_t first = draw() % (list.size() - 1);
      PlannedOperation &one = list[first], &other = list[first + 1];
      if (one.group == other.group && one.kind == other.kind && one.peer == other.peer) continue;
      std::swap(one, other);
      std::swap(one.action_index, other.action_index);
      const Words problems = operation_problems(plan.mesh, bad);
      ASSERT_EQ(!problems.empty(), has_cycle(plan.mesh, bad)) << fmt::format("{}", fmt::join(keys, " "));
      problems.empty() ? ++harmless : ++of_plan;
      for (const std::string& problem : problems) {
        EXPECT_TRUE(says(problem, {one.group, other.group, "no ranks may wait for each other in a cycle"})) << problem;
      }
    }
    EXPECT_GT(of_plan, 10) << fmt::format("{}", fmt::join(keys, " "));
    found += of_plan;
  }
  fmt::print("{} swaps are deadlocks, {} are not\n", found, harmless);
}

}  // namespace
}  // namespace orthant::operation_order_test
