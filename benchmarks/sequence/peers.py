#!/usr/bin/env python3
"""Sequences cut over two ranks beside PyTorch's building blocks on the CPU: same model, tokens, dtype and allocator.

Whole training steps of the 4-layer model of benchmarks/data_parallel, one sequence a step, float32, one thread a rank.
Ours is `orthant train`; the peer is benchmarks/peers/sequence.py: PyTorch's experimental ring attention called
directly (by all-gathers or by rotation), and Ulysses by all-to-alls, eager or under torch.compile, over Gloo. Its
fastest variant counts, on one rank as well. "of ideal" is tokens/s over twice the program's own on one rank. Programs
take turns; a run's figure is the median over its steps without the first five, the table's is the median over the
runs. All variants of the peer must show the same losses, or there is no table.

  python3 benchmarks/sequence/peers.py [--quick] [--seq-lens 256,2048,8192] [--cuts ring,ulysses]
"""
import argparse
import itertools
import math
import os
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (SIZES, WARMUP, add_program_arguments, find_programs, machine, print_head, print_row, watch_peer,
                    watch_training, write_corpus)

CUTS = {"none": ["none"], "ring": ["ring_allgather", "ring_alltoall"], "ulysses": ["ulysses"]}  # and the peer's ways
RANKS = {"none": 1, "ring": 2, "ulysses": 2}
LOSS_BOUND = 1e-5  # relative, of the peer's losses among themselves: float32, other orders of sums, a few steps


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_program_arguments(p)
    p.add_argument("--seq-lens", default="256" if quick else "256,2048,8192")
    p.add_argument("--cuts", default="ring,ulysses")
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="runs of each program a line")
    p.add_argument("--tokens", type=int, default=2048 if quick else 16384,
                   help="of a run, over all its steps that count; at least four steps do")
    p.add_argument("--quick", action="store_true", help="does it work? few steps, eager, one length")
    a = p.parse_args()
    a.no_compile |= a.quick
    find_programs(a)
    return a


def tokens_per_second(lines, length):
    return length / statistics.median(line["step_seconds"] for line in lines[WARMUP:])


def run_ours(a, cut, length, steps, corpus, folder):
    keys = {**{f"model.{k}": v for k, v in SIZES["tiny"].items()}, "model.max_position_embeddings": length,
            "run.ranks": RANKS[cut], "run.threads_per_rank": 1, "data.path": corpus, "training.steps": steps,
            "training.seq_len": length, "training.global_batch_size": 1, "training.local_batch_size": 1,
            "optimizer.lr": 3e-4}
    if cut != "none":
        keys[f"parallelism.context_parallel_{cut}"] = RANKS[cut]
    return tokens_per_second(watch_training(a, keys, folder)[0], length)


def run_peer(a, cut, variant, length, steps, folder):
    """Tokens/s, and the losses."""
    way, compiled = variant
    keys = {**SIZES["tiny"], "seq_len": length, "local_batch_size": 1, "global_batch_size": 1, "steps": steps,
            "cut": way, "compile": compiled}
    lines, _, _, _, summary = watch_peer(a, "sequence.py", RANKS[cut], 1, keys, folder)
    return tokens_per_second(lines, length), summary["losses"]


def check_losses(losses, seen, what):
    for mine, first in zip(losses, seen.setdefault("losses", losses)):
        if not math.isclose(mine, first, rel_tol=LOSS_BOUND):
            sys.exit(f"the peer's {what} computes something else: loss {mine} where another variant has {first}")


def fastest_variant(a, cut, length, folder, seen):
    compilers = ["none"] if a.no_compile else ["none", "model"]
    tried = []
    for variant in itertools.product(CUTS[cut], compilers):
        speed, losses = run_peer(a, cut, variant, length, WARMUP + 3, folder)
        check_losses(losses, seen, " ".join(variant))
        tried.append((speed, variant))
        print(f"  peer {' '.join(variant)}: {speed:,.0f} tokens/s", file=sys.stderr)
    return max(tried)[1]


def measure(a, cuts, length, corpus, folder):
    """cut -> (ours, peer, the peer's variant), tokens/s."""
    steps, seen = WARMUP + max(4, a.tokens // length), {}
    variants = {cut: fastest_variant(a, cut, length, folder, seen) for cut in cuts}
    ours, peer = {cut: [] for cut in cuts}, {cut: [] for cut in cuts}
    for turn in range(a.repeats):
        for cut in cuts:
            ours[cut].append(run_ours(a, cut, length, steps, corpus, folder))
            peer[cut].append(run_peer(a, cut, variants[cut], length, steps, folder)[0])
            print(f"  {turn + 1}/{a.repeats} {cut}: ours {ours[cut][-1]:,.0f}, peer {peer[cut][-1]:,.0f} tokens/s",
                  file=sys.stderr)
    return {cut: (statistics.median(ours[cut]), statistics.median(peer[cut]), variants[cut]) for cut in cuts}


def print_lines(length, found):
    own_one, peer_one, _ = found["none"]
    for cut, (ours, peer, (way, compiled)) in found.items():
        how = ", ".join(part for part in (way.split("_")[1] if "_" in way else "",
                                          "eager" if compiled == "none" else "compiled") if part)
        of_ideal = [f"{speed / (RANKS[cut] * one):.2f}" if cut != "none" else "1"
                    for speed, one in ((ours, own_one), (peer, peer_one))]
        print_row([f"{length:,}", cut, str(RANKS[cut]), f"{ours:,.0f}", f"{peer:,.0f} ({how})", f"{ours / peer:.2f}x",
                   *of_ideal])


def main():
    a = arguments()
    cuts = ["none", *a.cuts.split(",")]
    if unknown := set(cuts) - set(CUTS):
        sys.exit(f"--cuts {','.join(unknown)}: there are ring and ulysses")
    print(f"{machine()}; {a.repeats} runs each; one sequence a step, float32, one thread a rank; peer's allocator: "
          f"{os.path.basename(a.allocator)}\n")
    print_head(["tokens", "cut", "ranks", "Orthant tokens/s", "PyTorch tokens/s", "ratio", "Orthant of ideal",
                "PyTorch's"])
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(a, folder)
        for length in map(int, a.seq_lens.split(",")):
            print(f"{length} tokens", file=sys.stderr)
            print_lines(length, measure(a, cuts, length, corpus, folder))


if __name__ == "__main__":
    main()
