// The loop that ring attention and ring self-attention share: blocks travel round a ring, and the next block is
// received while the rank works on the present one.
//
// Forward of ring attention on ring rank r of n, as one loop (attend and merge: model/attention.h):
//
//   block = (k, v)                                     # keys and values of this rank's own tokens
//   for step in 0 .. n-1:
//     source = (r - step) mod n                        # the rank whose keys and values `block` holds
//     if step < n-1: transfer = send block to r+1 and receive the next block from r-1    # in the background
//     part = attend(q, block, visible keys of source)
//     (out, lse) = merge((out, lse), part)             # lse: log-sum-exp of the scores seen so far
//     if step < n-1: block = transfer.wait()
//
// visit_blocks() is this loop with attend and merge replaced by `work`. Backward runs it again, and adds in each step
// after the first (sum_over_blocks()):
//
//     sum = partial sum of dK and dV that r-1 has sent for source's block, or 0 in step 1; sum += work(source, block)
//     send sum to r+1; receive the partial sum of the next block; after the last step, that of this rank's own block
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "comm/comm.h"
#include "parallel/sequence/ring_plan.h"

namespace orthant {

/// The group that carries a ring's messages, and a message tag that separates rings of the same group.
struct RingChannel {
  Comm& comm;
  const Axes& axes;
  int tag = 0;
};

/// Allocates a receive buffer for the block of ring member `source`.
using AllocateBlock = std::function<at::Tensor(int source)>;

/// Calls work(source, block) for the block of every member, this rank's own first. The rank sends every block but the
/// next member's: (n-1)/n of all blocks, in n-1 messages.
void visit_blocks(const RingChannel& channel, const Ring& ring, at::Tensor own, const AllocateBlock& buffer,
                  const std::function<void(int source, at::Tensor block)>& work);

/// As visit_blocks(), where work returns this rank's partial sum for the block. Returns the sum over all ranks for this
/// rank's own block. Sums follow their blocks one step later; each reaches its owner after n-1 messages, and the owner
/// adds its own partial sum last. A partial sum must be memory that nobody else uses; an undefined tensor adds nothing.
/// `rest` adds the part of the own partial sum that work left out, while the other ranks' sum is on its way.
at::Tensor sum_over_blocks(const RingChannel& channel, const Ring& ring, at::Tensor own, const AllocateBlock& buffer,
                           const AllocateBlock& sum_buffer,
                           const std::function<at::Tensor(int source, at::Tensor block)>& work,
                           const std::function<void(at::Tensor own_partial_sum)>& rest = {});

}  // namespace orthant
