// Sequence parallelism, carried out: the core of attention that a plan asks for.
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"
#include "parallel/sequence/plan.h"

namespace orthant {

/// The mesh axes that cut sequences.
struct SequenceAxes {
  Axes ulysses = {kUlysses}, ring = {kRing};
};

/// The plan's method over the ring, inside Ulysses where the plan has it. On a ring of one rank ring self-attention
/// still rounds as on many; the others are local_attention(). The Comm must outlive it.
AttentionCore sequence_attention(Comm& comm, const SequencePlan& plan, const SequenceAxes& axes = {});

}  // namespace orthant
