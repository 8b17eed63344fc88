// The tree along which few numbers are summed over many ranks, in the order of their positions.
//
// Consecutive positions form blocks of kTreeBlock. In a block, a tree gathers all summands at the first position, its
// leader. They are gathered and not summed, because a sum of a subtree would be another order of additions. The leaders
// form a chain: each adds the summands of its block, one after another, to the sum of all blocks before it. The last
// leader has the total, and a tree over the leaders and then the trees of the blocks bring it to all positions.
//
// The trees are 4-nomial: the parent of a position is the position without its lowest digit to the base 4 that is not
// 0. They are half as deep as binomial trees, with 3/2 as many neighbors.
//
// Example: 18 positions in blocks of 16. In the first block, 1, 2 and 3 send their summands to 0, 5, 6 and 7 to 4, and
// 4 sends x4 to x7 to 0, as do 8 and 12 with theirs. 17 sends its summand to 16. Leader 0 adds x0 to x15 and sends the
// sum to leader 16, which adds x16 and x17. Then 16 sends the total to 0 and 17, 0 sends it to 12, 8, 4, 3, 2 and 1,
// and so on.
//
// Growth with n positions: at most 2 log2 n neighbors and kTreeBlock tensors of memory per position, and about
// n / kTreeBlock + log2 n messages one after another.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace orthant {

/// Positions of a block. It is a power of 4, so that its tree is full.
inline constexpr int kTreeBlock = 64;

/// The positions with which one position exchanges messages. One that does not exist is -1.
struct TreeNeighbors {
  int parent = -1;             // gets the summands of this position's subtree; a leader has none
  std::vector<int> children;   // send the summands of their subtrees, in the order of positions
  int subtree = 1;             // positions of the subtree: position, position + 1, ...
  int previous = -1;           // of a leader: the leader that sends it the sum of all blocks before
  int next = -1;               // of a leader: the leader that gets the sum up to the own block
  int source = -1;             // sends the total; the last leader has it
  std::vector<int> receivers;  // get the total from this position, the largest subtree first

  /// Number of tensors that the position sends: summands, sums and totals.
  int tensors_sent() const { return (parent >= 0 ? subtree : next >= 0) + static_cast<int>(receivers.size()); }
  /// Number of tensors that the position receives.
  int tensors_received() const { return subtree - 1 + (previous >= 0) + (source >= 0); }
  /// Number of tensors that the position must hold in addition to its own. In a leader, the
  /// sum of the blocks before replaces its own tensor.
  int tensors_held() const { return subtree > 1 || previous >= 0 ? subtree : 0; }
};

/// ceil(log4 n), the levels of a tree of n positions.
constexpr int tree_levels(int64_t n) { return (std::bit_width(static_cast<uint64_t>(n - 1)) + 1) / 2; }

/// The neighbors of a position from 0 to ranks - 1.
TreeNeighbors tree_neighbors(int ranks, int position, int block = kTreeBlock);

}  // namespace orthant
