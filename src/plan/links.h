// What the planner is told of the machine beside its ranks: bytes alone cannot tell an all-to-all within a host from a
// ring between hosts.
#pragma once

namespace orthant {

struct Links {
  int ranks_per_host = 0;        // consecutive ranks; 0: all on one host
  double inner_bytes_per_s = 0;  // what a rank sends to others of its host, all ranks at once
  double outer_bytes_per_s = 0;  // what a host sends to the others, all its ranks together
  double flops_per_s = 0;        // of a rank, in attention; 0: compute takes no time

  bool known() const { return inner_bytes_per_s > 0 && outer_bytes_per_s > 0; }
};

}  // namespace orthant
