#!/usr/bin/env python3
"""Does ring attention's communication hide behind its compute? One layer's attention between emulated hosts.

One rank on each of 2 and 4 hosts (benchmarks/hosts), zigzag, one sequence, float32, forward and backward. Compute
alone is the same blocks without a message, transfer alone the same messages without a block; the program checks that
both are what the layer does, to the bit (dq: to the order of its sums) and to the byte. Where one hides the other,
wall / longer is 1.

A row above the overlap threshold has at least so many tokens a rank n that compute covers transfer on every hop of the
ring (e bytes a key's element, e_s one of its gradient's sum, g query heads a key head, F the measured operations a
second of all ranks at once, B the measured bytes a second of the link):
  forward n >= e F / (g B), backward n >= 2 max(e + e_s, 2 e_s) F / (5 g B), F of each by itself;
the last of backward's sums has half of the own block's work to hide behind on its way home, all others a whole block's.

  python3 benchmarks/sequence/overlap.py [--quick] [--hosts 2,4] [--rates 100mbit,1gbit] [--tokens 256,1024,4096]

Needs root, like benchmarks/hosts. The median of the runs; all hosts and rates take turns.
"""
import argparse
import os
import sys

from emulated import add_arguments, gbit, shape_flags, take_turns

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import machine, print_head, print_row

ELEMENT_BYTES = SUM_BYTES = 4  # of keys and of their gradients' sums, in float32


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    p.add_argument("--hosts", default="2" if quick else "2,4")
    p.add_argument("--rates", default="1gbit" if quick else "100mbit,300mbit,1gbit,3gbit,10gbit")
    p.add_argument("--tokens", default="256" if quick else "256,1024,4096", help="of a rank")
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--key-heads", type=int, default=2)
    p.add_argument("--head-dim", type=int, default=64)
    p.add_argument("--turns", type=int, default=3, help="of what is measured within a run")
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="runs of each host count and rate")
    add_arguments(p)
    return p.parse_args()


def thresholds(a, line):
    """Tokens a rank from which compute covers transfer: forward, backward."""
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
