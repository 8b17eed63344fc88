// Binomial trees over the positions of a block, and over the leaders of all blocks.
#include "mesh/sum_tree.h"

#include <algorithm>
#include <bit>

#include "base/errors.h"

namespace orthant {
namespace {

// The lowest set bit of a position, which is the size of its full subtree. The root's subtree is the whole tree.
int full_subtree(int position, int size) {
  return position == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) : position & -position;
}

// Children of a position of a binomial tree over 0..size - 1, in ascending order. The parent of p is p without its
// lowest set bit.
std::vector<int> children_of(int position, int size) {
  std::vector<int> children;
  const int full = full_subtree(position, size);
  for (int distance = 1; distance < full && position + distance < size; distance *= 2) {
    children.push_back(position + distance);
  }
  return children;
}

}  // namespace

TreePlace tree_place(int ranks, int position, int block) {
  ORTHANT_CHECK(position >= 0 && position < ranks && std::has_single_bit(static_cast<unsigned>(block)), position, ranks,
                block);
  const int leader = position / block * block, in_block = position - leader;
  const int size = std::min(block, ranks - leader);
  TreePlace place;
  for (const int child : children_of(in_block, size)) place.children.push_back(leader + child);
  place.subtree = std::min(full_subtree(in_block, size), size - in_block);
  if (in_block > 0) {
    place.parent = place.source = position - full_subtree(in_block, size);
  } else {
    if (leader > 0) place.previous = leader - block;
    if (leader + block < ranks) place.next = leader + block;
    // The last leader is the root of the tree over leaders.
    const int blocks = (ranks + block - 1) / block, from_last = blocks - 1 - leader / block;
    const auto leader_at = [&](int index) { return (blocks - 1 - index) * block; };
    if (from_last > 0) place.source = leader_at(from_last - full_subtree(from_last, blocks));
    for (const int other : children_of(from_last, blocks)) place.receivers.push_back(leader_at(other));
    std::ranges::reverse(place.receivers);
  }
  place.receivers.insert(place.receivers.end(), place.children.rbegin(), place.children.rend());
  return place;
}

}  // namespace orthant
