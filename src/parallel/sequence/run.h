// Sequence parallelism, libtorch half: the attention core that a plan asks for.
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"
#include "parallel/sequence/plan.h"

namespace orthant {

/// The mesh axes that shard sequences.
struct SequenceAxes {
  Axes ulysses = {kUlysses}, ring = {kRing};
};

/// The core of the plan's method over the ring, inside Ulysses if the plan has more than one Ulysses rank. On a ring of
/// one rank, ring self-attention still rounds as it does on several; the other methods become local_attention(). The
/// Comm must outlive the core.
AttentionCore sequence_attention(Comm& comm, const SequencePlan& plan, const SequenceAxes& axes = {});

}  // namespace orthant
