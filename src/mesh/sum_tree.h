// The tree along which few numbers are summed over many ranks, in the order of their positions.
//
// Consecutive positions form blocks of kTreeBlock. In a block, a binomial tree gathers all summands at the first
// position, its leader. They are gathered and not summed, because a sum of a subtree would be another order of
// additions. The leaders form a chain: each adds the summands of its block, one after another, to the sum of all blocks
// before it. The last leader has the total, and a binomial tree over the leaders and then the trees of the blocks bring
// it to all positions.
//
// Example: 6 positions in blocks of 4. In the first block, 1 sends its summand to 0, 3 to 2, and 2 sends both to 0; 5
// sends its summand to 4. Leader 0 sends ((x0 + x1) + x2) + x3 to leader 4, which adds x4 and x5. Then 4 sends the
// total to 0 and 5, 0 sends it to 2 and 1, and 2 sends it to 3.
//
// Growth with n positions: at most 2 log2 n neighbors and kTreeBlock tensors of memory per position, and about
// n / kTreeBlock + 2 log2 n messages one after another.
#pragma once

#include <vector>

namespace orthant {

/// Positions of a block. It is a power of two, so that a host with a power of two of ranks holds full subtrees.
inline constexpr int kTreeBlock = 64;

/// The messages of one position. A member that does not exist is -1.
struct TreePlace {
  int parent = -1;            // gets the summands of this position's subtree; a leader has none
  std::vector<int> children;  // send the summands of their subtrees, in the order of positions
  int subtree = 1;            // positions of the subtree: position, position + 1, ...
  int previous = -1;          // of a leader: the leader that sends it the sum of all blocks before
  int next = -1;              // of a leader: the leader that gets the sum up to the own block
  int source = -1;            // sends the total; the last leader has it
  std::vector<int> receivers; // get the total from this position, the largest subtree first

  /// Number of tensors that the position sends: summands, sums and totals.
  int tensors_sent() const { return (parent >= 0 ? subtree : next >= 0) + static_cast<int>(receivers.size()); }
  /// Number of tensors that the position must hold in addition to its own. A leader replaces its own place in the
  /// subtree by the sum of the blocks before.
  int tensors_held() const { return subtree > 1 || previous >= 0 ? subtree : 0; }
};

/// The place of a position from 0 to ranks - 1. `block` must be a power of two.
TreePlace tree_place(int ranks, int position, int block = kTreeBlock);

}  // namespace orthant
