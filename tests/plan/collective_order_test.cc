// Ranks that would wait for each other in collectives of different groups are found: in plans with two collectives
// swapped on one rank, and in random lists, compared with a search for a cycle in the graph of all collectives.
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

namespace orthant::collective_order_test {
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

// The oracle: whether the graph of all collectives, with an edge from each one of a rank to the rank's next one on the
// same channel, has a cycle.
bool has_cycle(const Mesh& mesh, const OperationLists& all) {
  using Node = std::tuple<std::string, int, int>;  // group, lowest member, number of the collective in that group
  std::map<Node, std::set<Node>> next;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::map<std::string, int> counts;
    std::map<std::string, Node> last;  // by channel
    for (const PlannedOperation& operation : all.lists[static_cast<size_t>(all.classes.of(rank))]) {
      if (operation.peer >= 0) continue;
      const std::string& group = operation.group;
      const std::string channel = group.substr(std::min(group.find('#'), group.size()));
      const Node node{group, mesh.group(rank, axes_of(group)).front(), counts[group]++};
      if (last.contains(channel)) next[last[channel]].insert(node);
      last[channel] = node;
      next[node];
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

TEST(CollectiveOrder, AnotherOrderIsADeadlockOnlyIfAllWaitInACycle) {
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

TEST(CollectiveOrder, OfRandomListsIsJudgedAsByTheGraph) {
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

// Swaps two collectives of different groups that follow each other on one rank. The other laws hold for these lists.
TEST(CollectiveOrder, SwappedCollectivesOfPlansAreFound) {
  const std::string p = "parallelism.";
  std::mt19937 draw(1);
  int found = 0, harmless = 0;
  for (const Words& keys :
       std::vector<Words>{{p + "zero_stage=2", p + "data_parallel_replicate_degree=2"},
                          {p + "zero_stage=1", p + "data_parallel_replicate_degree=2", "optimizer.name=muon"},
                          {p + "zero_stage=3", p + "pipeline_parallel_degree=2"},
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
      std::vector<size_t> collectives;
      for (size_t at = 0; at < list.size(); ++at) {
        if (list[at].peer < 0) collectives.push_back(at);
      }
      const size_t first = draw() % (collectives.size() - 1);
      PlannedOperation &one = list[collectives[first]], &other = list[collectives[first + 1]];
      if (one.group == other.group) continue;
      std::swap(one, other);
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
}  // namespace orthant::collective_order_test
