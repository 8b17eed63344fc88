#!/usr/bin/env python3
"""Compares data parallelism with PyTorch's DistributedDataParallel: same model, batch, ranks and allocator.

For each line of the table the two programs take turns (ours, peer, ours, peer, ...), so that other load on the machine
affects both. The result of a run is the median over its steps; the table has the median over the runs. Each variant of
the peer is measured first (eager or torch.compile; one thread or all; for bf16 autocast or bf16 weights), and the
fastest one is compared.

  python3 benchmarks/data_parallel/run.py [--quick] [--ranks 1,2,4] [--dtypes float32,bfloat16] [--sizes tiny,50m]
"""
import argparse
import itertools
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import SIZES, Runs, median_of, names_of, print_head, print_row
from comparison import WARMUP, Programs, add_program_arguments, find_programs, print_setting, speed_cells


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add_program_arguments(p)
    quick = "--quick" in sys.argv
    p.add_argument("--ranks", default="1,2" if quick else "1,2,4")
    p.add_argument("--sizes", type=names_of(SIZES), default="tiny" if quick else "tiny,50m")
    p.add_argument("--dtypes", type=names_of(("float32", "bfloat16")), default="float32,bfloat16")
    p.add_argument("--steps", type=int, default=12 if quick else 40,
                   help="number of steps per run (a third of it for 50m)")
    p.add_argument("--seq-len", type=int, default=256)
    p.add_argument("--local-batch-size", type=int, default=8, help="number of sequences per rank and step")
    p.add_argument("--quick", action="store_true", help="smoke test with few steps, eager mode and smaller defaults")
    a = p.parse_args()
    find_programs(a)
    return a


def ways(a, dtype, ranks, threads):
    """Returns the peer's variants of a case. Small matrix products may be faster with one thread than with all."""
    compilers = a.compilers + ["ddp"] * ("model" in a.compilers and ranks > 1)
    dtypes = ["bfloat16_autocast", "bfloat16_master"] if dtype == "bfloat16" else [dtype]
    return [{"dtype": dtype, "compile": compiled, "threads": threads} for compiled, dtype, threads in
            itertools.product(compilers, dtypes, sorted({1, threads}))]


def turn(a, programs, case, runs):
    """Makes one run of each program and returns its figures."""
    size, dtype, ranks = case
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    steps = a.steps - WARMUP if size == "tiny" else max(5, a.steps // 3 - WARMUP)
    way = runs[0]["way"] if runs else programs.fastest(ranks, ways(a, dtype, ranks, threads), 5)
    ours = programs.ours(ranks, steps, {"training.dtype": dtype}, threads)
    peer = programs.peer(ranks, steps, way)
    return {"ours": ours.tokens_per_second(), "peer": peer.tokens_per_second(), "way": way,
            "ours_bytes": ours.resident_bytes, "peer_bytes": peer.resident_bytes, "ours_first_s": ours.first_s,
            "peer_first_s": peer.first_s, "ours_waits": ours.waiting(),
            "peer_waits": peer.summary()["communication_share"]}


def share(value):
    return "-" if value is None else f"{100 * value:.0f} %"


def print_line(case, runs):
    size, dtype, ranks = case
    middle = median_of(runs)
    name = {"none": "eager", "model": "compiled", "ddp": "compiled (DDP)"}[middle["way"]["compile"]]
    if middle["way"]["dtype"] != dtype:
        name += ", " + middle["way"]["dtype"].split("_")[1]
    print_row([size, dtype, str(ranks), *speed_cells(runs, name)[:3],
               *(f"{middle[who + '_bytes'] / 2**20:,.0f}" for who in ("ours", "peer")),
               *(f"{middle[who + '_first_s']:.1f}" for who in ("ours", "peer")),
               *(share(middle[who + "_waits"]) for who in ("ours", "peer"))])


def main():
    a = arguments()
    print_setting(a, f"{a.local_batch_size} sequences of {a.seq_len} tokens a rank and step")
    print_head(["model", "dtype", "ranks", "Orthant tokens/s", "DDP tokens/s", "ratio", "peak MiB a rank", "DDP",
                "s to first step", "DDP", "exposed communication", "DDP"])
    measured = Runs(a.json)
    with tempfile.TemporaryDirectory() as folder:
        for case in itertools.product(a.sizes, a.dtypes, map(int, a.ranks.split(","))):
            size, _, ranks = case
            name = "{}, {}, {} ranks".format(*case)
            work = {**SIZES[size], "seq_len": a.seq_len, "local_batch_size": a.local_batch_size,
                    "global_batch_size": a.local_batch_size * ranks}
            programs = Programs(a, "ddp.py", work, folder)
            found = measured.take_turns(a.repeats, [name], lambda _, runs: turn(a, programs, case, runs))
            print_line(case, found[name])


if __name__ == "__main__":
    main()
