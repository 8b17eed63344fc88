// Speeds of links and ranks, from which the planner estimates times. Bytes alone cannot distinguish an all-to-all
// within a host from a ring between hosts.
#pragma once

namespace orthant {

struct Links {
  int ranks_per_host = 0;        // consecutive ranks share a host; 0: all ranks are on one host
  double inner_bytes_per_s = 0;  // bandwidth from one rank to others of its host while all ranks send
  double outer_bytes_per_s = 0;  // bandwidth from one host to the other hosts, shared by all its ranks
  double flops_per_s = 0;        // speed of one rank in attention; 0: computation takes no time

  bool known() const { return inner_bytes_per_s > 0 && outer_bytes_per_s > 0; }
};

}  // namespace orthant
