#!/usr/bin/env python3
"""Measures whether ring attention hides its communication behind its computation, for one layer between emulated hosts.

There is one rank on each of 2 and 4 hosts (benchmarks/hosts), with zigzag placement and one sequence in float32,
forward and backward. "Compute alone" is the same blocks without messages, "transfer alone" the same messages without
blocks. The program checks that both are those of the layer: equal to the bit (dq: except for the order of sums) and to
the byte. If the shorter of the two is hidden completely, wall / longer is 1.

In a row above the overlap threshold, a rank has enough tokens n that computation takes at least as long as transfer on
every hop of the ring:
  forward n >= e F / (g B), backward n >= 2 max(e + e_s, 2 e_s) F / (5 g B).
e is the size of a key's element in bytes, e_s that of an element of its gradient's sum, and g the number of query heads
per key head. F is the measured FLOPs per second of a rank while all ranks compute, of forward and of backward. B is the
measured bytes per second of the link. While the last sum of backward returns to its owner, the owner computes half of
its own block; during all other hops a rank computes a full block.

  python3 benchmarks/sequence/overlap.py [--quick] [--hosts 2,4] [--rates 100mbit,1gbit] [--tokens 256,1024,4096]

Requires root, as benchmarks/hosts does. Results are medians of the runs; all hosts and rates take turns.
"""
import argparse
import os
import sys

from emulated import add_arguments, gbit, shape_flags, take_turns

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import machine, print_head, print_row

ELEMENT_BYTES = SUM_BYTES = 4  # bytes of an element of the keys, and of their gradients' sums, in float32


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    p.add_argument("--hosts", default="2" if quick else "2,4")
    p.add_argument("--rates", default="1gbit" if quick else "100mbit,300mbit,1gbit,3gbit,10gbit")
    p.add_argument("--tokens", default="256" if quick else "256,1024,4096", help="numbers of tokens per rank")
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--key-heads", type=int, default=2)
    p.add_argument("--head-dim", type=int, default=64)
    p.add_argument("--turns", type=int, default=3, help="number of measurements per run")
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="number of runs for each host count and rate")
    add_arguments(p)
    return p.parse_args()


def thresholds(a, line):
    """Returns the smallest number of tokens per rank for which computation takes as long as transfer: (forward,
    backward)."""
    bytes_per_s, sharing = 1e9 / 8 * line["outer_gbit"], a.heads / a.key_heads
    forward = line["forward_flops"] / (1e-3 * line["forward_compute_ms"])
    backward = 2.5 * line["forward_flops"] / (1e-3 * line["backward_compute_ms"])
    return (ELEMENT_BYTES * forward / (sharing * bytes_per_s),
            2 * max(ELEMENT_BYTES + SUM_BYTES, 2 * SUM_BYTES) * backward / (5 * sharing * bytes_per_s))


def row(a, hosts, rate, line):
    both = {kind: line[f"forward{kind}_ms"] + line[f"backward{kind}_ms"] for kind in ("", "_compute", "_transfer")}
    forward_over = line["forward_ms"] / max(line["forward_compute_ms"], line["forward_transfer_ms"])
    threshold = max(thresholds(a, line))
    return [str(hosts), f"{gbit(rate):g}" if rate != "none" else "no limit", f"{line['outer_gbit']:.2f}",
            f"{line['tokens']:,.0f}", f"{threshold:,.0f}", "yes" if line["tokens"] >= threshold else "",
            *(f"{both[kind]:.3g}" for kind in ("_compute", "_transfer", "")),
            f"{both[''] / max(both['_compute'], both['_transfer']):.2f}", f"{forward_over:.2f}"]


def main():
    a = arguments()
    cases = {(hosts, rate): (hosts, 1, rate, ["--cuts", f"1x{hosts}", "--tokens", a.tokens, "--turns", str(a.turns),
                                              *shape_flags(a)])
             for hosts in map(int, a.hosts.split(",")) for rate in a.rates.split(",")}
    print(f"{machine()}; {a.heads} heads of {a.head_dim}, {a.key_heads} key heads; median of {a.repeats} runs\n")
    found = take_turns(a, cases, a.repeats)
    print_head(["hosts", "link, Gbit/s", "as measured", "tokens a rank", "threshold", "above", "compute alone, ms",
                "transfer alone, ms", "wall, ms", "wall / longer", "forward's"])
    for ((hosts, rate), _, _), line in found.items():
        print_row(row(a, hosts, rate, line))


if __name__ == "__main__":
    main()
