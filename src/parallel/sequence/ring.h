// Blocks that go round a ring: what ring attention and ring self-attention have in common. While a rank works on one
// block, the next is under way.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "comm/comm.h"
#include "parallel/sequence/ring_plan.h"

namespace orthant {

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
