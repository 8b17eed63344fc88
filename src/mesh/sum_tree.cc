// 4-nomial trees over the positions of a block, and over the leaders of all blocks.
#include "mesh/sum_tree.h"

#include <algorithm>

#include "base/errors.h"

namespace orthant {
namespace {

constexpr int kBase = 4;

// Size of the full subtree of a position: the largest power of the base that divides it. The root's subtree is the
// whole tree.
int full_subtree(int position, int size) {
  int subtree = 1;
  while (subtree < size && position % (subtree * kBase) == 0) subtree *= kBase;
  return subtree;
}

int parent_of(int position, int size) {
  const int subtree = full_subtree(position, size);
  return position - position / subtree % kBase * subtree;
}

// Children of a position of a tree over 0..size - 1, in ascending order.
std::vector<int> children_of(int position, int size) {
  std::vector<int> children;
  for (int distance = 1; distance < full_subtree(position, size); distance *= kBase) {
    for (int digit = 1; digit < kBase && position + digit * distance < size; ++digit) {
      children.push_back(position + digit * distance);
    }
  }
  return children;
}

}  // namespace

TreeNeighbors tree_neighbors(int ranks, int position, int block) {
  ORTHANT_CHECK(position >= 0 && position < ranks && block > 0, position, ranks, block);
  const int leader = position / block * block, in_block = position - leader;
  const int size = std::min(block, ranks - leader);
  TreeNeighbors place;
  for (const int child : children_of(in_block, size)) place.children.push_back(leader + child);
  place.subtree = std::min(full_subtree(in_block, size), size - in_block);
  if (in_block > 0) {
    place.parent = place.source = leader + parent_of(in_block, size);
  } else {
    if (leader > 0) place.previous = leader - block;
    if (leader + block < ranks) place.next = leader + block;
    // The last leader is the root of the tree over leaders.
    const int blocks = (ranks + block - 1) / block, from_last = blocks - 1 - leader / block;
    const auto leader_at = [&](int index) { return (blocks - 1 - index) * block; };
    if (from_last > 0) place.source = leader_at(parent_of(from_last, blocks));
    for (const int other : children_of(from_last, blocks)) place.receivers.push_back(leader_at(other));
    std::ranges::reverse(place.receivers);
  }
  place.receivers.insert(place.receivers.end(), place.children.rbegin(), place.children.rend());
  return place;
}

}  // namespace orthant
