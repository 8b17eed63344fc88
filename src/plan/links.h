// How long a layer's attention takes under a layout, once the wires are known: bytes alone cannot tell an all-to-all
// within a host from a ring between hosts.
#pragma once

#include <cstdint>

namespace orthant {

struct LayerChoice;
struct Plan;

/// What the planner is told of the machine; rates in bytes and floating-point operations a second.
struct Links {
  int ranks_per_host = 0;  // consecutive ranks; 0: all on one host
  double inner = 0;        // what a rank sends to others of its host, all ranks at once
  double outer = 0;        // what a host sends to the others, all its ranks together
  double flops = 0;        // of a rank, in attention; 0: compute takes no time

  bool known() const { return inner > 0 && outer > 0; }
};

/// Seconds of one layer's attention, a step, forward and backward: the all-to-alls, which nothing hides, and the longer
/// of computing and the ring, of which one hides the other (Liu et al. 2023, "Ring Attention", arXiv 2310.01889,
/// section 3). Messages to a group's members are taken as equal. Infinity where the layout does not cut sequences or
/// batch.
double attention_seconds(const Plan& plan, const LayerChoice& choice, const Links& links);

}  // namespace orthant
