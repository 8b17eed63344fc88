#!/usr/bin/env python3
"""Compares sequences sharded over two ranks with PyTorch's building blocks on the CPU: same model, tokens, dtype and
allocator.

The programs make complete training steps of the 4-layer model of benchmarks/data_parallel, with one sequence per step,
float32, and one thread per rank. Ours is `orthant train`; the peer is benchmarks/peers/sequence.py: PyTorch's
experimental ring attention called directly (by all-gathers or by rotation), and Ulysses by all-to-alls, in eager mode
or with torch.compile, over Gloo. Its fastest variant is compared, on one rank as well. "fraction of ideal" is tokens/s,
divided by twice the program's tokens/s on one rank. Programs take turns. The result of a run is the median over its
steps without the first five; the table has the median over the runs. All variants of the peer must have the same
losses, or there is no table.

  python3 benchmarks/sequence/peers.py [--quick] [--seq-lens 256,2048,8192] [--cuts ring,ulysses] [--json FILE]
"""
import argparse
import itertools
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import SIZES, Runs, median_of, names_of, print_head, print_row
from comparison import Programs, add_program_arguments, find_programs, print_setting, speed_cells

# layout -> the peer's variants
CUTS = {"none": ["none"], "ring": ["ring_allgather", "ring_alltoall"], "ulysses": ["ulysses"]}
RANKS = {"none": 1, "ring": 2, "ulysses": 2}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_program_arguments(p)
    p.add_argument("--seq-lens", default="256" if quick else "256,2048,8192")
    p.add_argument("--cuts", type=names_of(CUTS), default="ring,ulysses")
    p.add_argument("--tokens", type=int, default=2048 if quick else 16384,
                   help="number of tokens per run in measured steps; at least four steps are measured")
    p.add_argument("--quick", action="store_true", help="smoke test with few steps, eager mode and one length")
    a = p.parse_args()
    find_programs(a)
    return a


def turn(a, programs, length, cut, runs):
    """Makes one run of each program and returns its figures."""
    ranks, steps = RANKS[cut], max(4, a.tokens // length)
    way = runs[0]["way"] if runs else programs.fastest(ranks, [
        {"cut": way, "compile": compiled} for way, compiled in itertools.product(CUTS[cut], a.compilers)])
    keys = {f"parallelism.context_parallel_{cut}": ranks} if cut != "none" else {}
    return {"ours": programs.ours(ranks, steps, keys).tokens_per_second(),
            "peer": programs.peer(ranks, steps, way).tokens_per_second(), "way": way}


def print_lines(length, found):
    one = median_of(found["none"])
    for cut, runs in found.items():
        middle = median_of(runs)
        way = "eager" if middle["way"]["compile"] == "none" else "compiled"
        if cut == "ring":
            way = f"{middle['way']['cut'].removeprefix('ring_')}, {way}"
        of_ideal = ["1"] * 2 if cut == "none" else [f"{middle[who] / (RANKS[cut] * one[who]):.2f}"
                                                    for who in ("ours", "peer")]
        print_row([f"{length:,}", cut, str(RANKS[cut]), *speed_cells(runs, way)[:3], *of_ideal])


def main():
    a = arguments()
    print_setting(a, "one sequence a step, float32, one thread a rank")
    print_head(["tokens", "cut", "ranks", "Orthant tokens/s", "PyTorch tokens/s", "ratio", "Orthant, fraction of ideal",
                "PyTorch, fraction of ideal"])
    measured = Runs(a.json)
    with tempfile.TemporaryDirectory() as folder:
        for length in map(int, a.seq_lens.split(",")):
            work = {**SIZES["tiny"], "seq_len": length, "local_batch_size": 1, "global_batch_size": 1}
            programs = Programs(a, "sequence.py", work, folder)
            print_lines(length, measured.take_turns(a.repeats, ["none", *a.cuts],
                                                    lambda *case: turn(a, programs, length, *case), str(length)))


if __name__ == "__main__":
    main()
