// Blocks that go round a ring: what ring attention and ring self-attention have in common. While a rank works on one
// block, the next is under way.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "comm/comm.h"

namespace orthant {

/// Some members of a group, in the order in which blocks go round, by their positions in it.
struct Ring {
  std::vector<int> members;
  int index = 0;  // of this rank

  int size() const { return static_cast<int>(members.size()); }
  /// The member whose block arrives at step s, since blocks go to the next one: index - s.
  int source(int step) const { return ((index - step) % size() + size()) % size(); }
};

/// A ring of windows (Gu et al. 2024, "LoongTrain", arXiv 2406.18485, section 4.3): blocks go round inside a window of
/// neighbours while each window's blocks are on their way to the next. The inner ring alone, where a window is all.
struct DoubleRing {
  Ring inner, outer;  // outer: the windows' members with this rank's place, one a window
  int window = 0;

  /// The group's member whose block it is: window x inner size + index within.
  int member(int window_of, int index_in) const { return window_of * window + index_in; }
};
DoubleRing double_ring(int size, int index, int window);

/// Where a ring's messages go: the group they travel in, and a tag that tells rings of the group apart.
struct RingChannel {
  Comm& comm;
  const Axes& axes;
  int tag = 0;
};

/// A buffer for the block of a member.
using NewBlock = std::function<at::Tensor(int source)>;

/// Calls work(source, block) for every member's block, this rank's own first. Sends all blocks but the next member's:
/// (n-1)/n of all, in n-1 messages.
void visit_blocks(const RingChannel& channel, const Ring& ring, at::Tensor own, const NewBlock& buffer,
                  const std::function<void(int source, at::Tensor block)>& work);

/// The same, where work returns what it adds to the block's sum: the sums travel one step behind their blocks and each
/// comes home in n-1 messages, where this rank's own share is added last. Returns that of this rank's block. A share is
/// memory that nobody else uses; an undefined one adds nothing. `rest` adds what work left out of the own share, while
/// its sum is on its way home.
at::Tensor sum_over_blocks(const RingChannel& channel, const Ring& ring, at::Tensor own, const NewBlock& buffer,
                           const NewBlock& sum_buffer,
                           const std::function<at::Tensor(int source, at::Tensor block)>& work,
                           const std::function<void(at::Tensor own_share)>& rest = {});

}  // namespace orthant
