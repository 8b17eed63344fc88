// The tree of small sums, carried out on lists of positions instead of numbers: every position gets the total in the
// order of positions, with few neighbors, and the number of tensors sent is the one of the plan.
#include "mesh/sum_tree.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <numeric>
#include <set>

#include "mesh/collective.h"

namespace orthant::sum_tree_test {
namespace {

using Summands = std::vector<int>;  // positions, in the order in which they are added

struct Carried {
  std::vector<Summands> totals;  // by position; empty: the total does not arrive
  std::vector<int> sent;         // tensors, by position
  std::vector<int> received;
  std::vector<std::set<int>> neighbors;
  std::vector<int> held;  // tensors in addition to the own one
};

// Carries out the messages between the places, in the order of their dependencies.
class Messages {
 public:
  explicit Messages(std::vector<TreeNeighbors> places)
      : places_(std::move(places)),
        carried_{.totals = std::vector<Summands>(places_.size()),
                 .sent = std::vector<int>(places_.size()),
                 .received = std::vector<int>(places_.size()),
                 .neighbors = std::vector<std::set<int>>(places_.size()),
                 .held = std::vector<int>(places_.size())} {}

  Carried carry_out() {
    for (int position = 0; position < std::ssize(places_); ++position) {
      if (at(position).parent < 0 && at(position).next < 0) spread(position, sum_up_to(position));
    }
    return carried_;
  }

 private:
  const TreeNeighbors& at(int position) const { return places_.at(static_cast<size_t>(position)); }
  void send(int from, int to, size_t tensors) {
    carried_.sent[static_cast<size_t>(from)] += static_cast<int>(tensors);
    carried_.received[static_cast<size_t>(to)] += static_cast<int>(tensors);
    carried_.neighbors[static_cast<size_t>(from)].insert(to);
    carried_.neighbors[static_cast<size_t>(to)].insert(from);
  }
  Summands gather(int position) {
    Summands all{position};
    for (const int child : at(position).children) {
      EXPECT_EQ(at(child).parent, position);
      const Summands part = gather(child);
      EXPECT_EQ(std::ssize(part), at(child).subtree);
      send(child, position, part.size());
      all.insert(all.end(), part.begin(), part.end());
    }
    carried_.held[static_cast<size_t>(position)] = std::ssize(all) > 1 ? static_cast<int>(all.size()) : 0;
    return all;
  }
  Summands sum_up_to(int leader) {
    Summands sum;
    if (const int previous = at(leader).previous; previous >= 0) {
      EXPECT_EQ(at(previous).next, leader);
      sum = sum_up_to(previous);
      send(previous, leader, 1);
    }
    const Summands own = gather(leader);
    if (!sum.empty()) carried_.held[static_cast<size_t>(leader)] = static_cast<int>(own.size());
    sum.insert(sum.end(), own.begin(), own.end());
    return sum;
  }
  void spread(int position, const Summands& total) {
    carried_.totals[static_cast<size_t>(position)] = total;
    for (const int receiver : at(position).receivers) {
      EXPECT_EQ(at(receiver).source, position);
      send(position, receiver, 1);
      spread(receiver, total);
    }
  }

  std::vector<TreeNeighbors> places_;
  Carried carried_;
};

std::vector<TreeNeighbors> tree_of(int ranks, int block = kTreeBlock) {
  std::vector<TreeNeighbors> places;
  for (int position = 0; position < ranks; ++position) places.push_back(tree_neighbors(ranks, position, block));
  return places;
}

Summands in_order(int ranks) {
  Summands all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool sums_in_order(const Carried& carried) {
  const Summands expected = in_order(static_cast<int>(carried.totals.size()));
  return std::ranges::all_of(carried.totals, [&](const Summands& total) { return total == expected; });
}

TEST(SumTree, BringsTheSumInOrderToAll) {
  for (const int block : {1, 2, 4, 64}) {
    for (int ranks = 2; ranks <= 140; ++ranks) {
      ASSERT_TRUE(sums_in_order(Messages(tree_of(ranks, block)).carry_out())) << ranks << " in blocks of " << block;
    }
  }
  for (const int ranks : {1024, 1027, 4096}) ASSERT_TRUE(sums_in_order(Messages(tree_of(ranks)).carry_out())) << ranks;
}

// Negative control: a tree that forgets a child, or gathers two children in the wrong order, is seen.
TEST(SumTree, AFaultyTreeIsSeen) {
  std::vector<TreeNeighbors> forgets = tree_of(70), swaps = forgets;
  auto& children = forgets[64].children;
  forgets[64].receivers.erase(std::ranges::find(forgets[64].receivers, children.back()));
  EXPECT_FALSE(sums_in_order(Messages(forgets).carry_out()));
  std::swap(swaps[0].children[0], swaps[0].children[1]);
  EXPECT_FALSE(sums_in_order(Messages(swaps).carry_out()));
}

TEST(SumTree, NeighborsGrowWithTheLogarithm) {
  for (const int ranks : {9, 16, 63, 64, 65, 100, 256, 1000, 1024, 4096}) {
    const Carried carried = Messages(tree_of(ranks)).carry_out();
    size_t most = 0;
    for (const auto& neighbors : carried.neighbors) most = std::max(most, neighbors.size());
    EXPECT_LE(static_cast<int>(most), 2 * std::bit_width(static_cast<unsigned>(ranks - 1))) << ranks;
  }
}

// The plan's elements and memory are those of the messages.
TEST(SumTree, MovesWhatThePlanCounts) {
  for (const int ranks : {2, 9, 17, 64, 65, 130, 1000}) {
    const Carried carried = Messages(tree_of(ranks)).carry_out();
    const int64_t extents[] = {7};
    int64_t most = 0;
    for (int position = 0; position < ranks; ++position) {
      const auto at = static_cast<size_t>(position);
      const Moved moved = elements_moved(CollectiveKind::all_reduce_by_tree, ranks, position, extents);
      EXPECT_EQ(moved, (Moved{7 * carried.sent[at], 7 * carried.received[at]})) << position << " of " << ranks;
      EXPECT_EQ(tree_neighbors(ranks, position).tensors_held(), carried.held[at]) << position << " of " << ranks;
      EXPECT_LE(carried.held[at], kTreeBlock);
      most = std::max(most, moved.sent);
    }
    EXPECT_EQ(max_elements_sent(CollectiveKind::all_reduce_by_tree, ranks, extents), most);
  }
}

// The worked example of the header.
TEST(SumTree, OfEighteenPositionsInBlocksOfSixteen) {
  const std::vector<TreeNeighbors> tree = tree_of(18, 16);
  EXPECT_EQ(tree[0].children, (std::vector{1, 2, 3, 4, 8, 12}));
  EXPECT_EQ(tree[4].children, (std::vector{5, 6, 7}));
  EXPECT_EQ(tree[4].subtree, 4);
  EXPECT_EQ(tree[16].children, (std::vector{17}));
  EXPECT_EQ(tree[0].next, 16);
  EXPECT_EQ(tree[16].receivers, (std::vector{0, 17}));
  EXPECT_EQ(tree[0].receivers, (std::vector{12, 8, 4, 3, 2, 1}));
}

}  // namespace
}  // namespace orthant::sum_tree_test
