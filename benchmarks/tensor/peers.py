#!/usr/bin/env python3
"""Compares tensor parallelism with PyTorch's, with real computation: same model, tokens, ranks, dtype and allocator.

The programs make complete training steps of the 4-layer model of benchmarks/data_parallel, in float32 with one thread
per rank. Ours is `orthant train`; the peer is benchmarks/peers/tensor.py: DTensor's parallelize_module over Gloo. 1-D
on 2 and 4 ranks is compared with the peer's, with and without tokens sharded between the products. PyTorch has no
counterpart of [2, 2, 1] and [2, 2, 2] (rows, columns, depth). They are compared with the peer's fastest layout on the
same number of ranks that has no more copies of each weight: 1-D over four ranks, with two replicas under
DistributedDataParallel for the depth, or 1-D over two ranks with fully_shard over the others.

Two choices are measured on two ranks, and the fastest variant is used for all lines: the loss of gathered or of sharded
logits, and eager mode or torch.compile. fully_shard is always eager, because it fails when compiled. All variants of
the peer must have the same losses, or there is no table. "fraction of ideal" is tokens/s, divided by twice the
program's tokens/s on one rank. It is given on two ranks only, because more ranks share this machine's cores. Programs
take turns. The result of a run is the median over its steps without the first five; the table has the median over the
runs. "from, to": the smallest and the largest ratio of a turn.

  python3 benchmarks/tensor/peers.py [--quick] [--cases none,1d2,1d2-sequence,...] [--repeats 3] [--json FILE]
"""
import argparse
import itertools
import math
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import SIZES, Runs, median_of, names_of, print_head, print_row
from comparison import Programs, add_program_arguments, find_programs, print_setting, speed_cells


def one_d(degree, sequence):
    return {"tensor_parallel_degree": degree, "tensor_parallel_sequence": "true" if sequence else "false"}


def deep(mesh):
    return {"tensor_parallel_kind": "2.5d", "tensor_parallel_mesh": mesh}


def peers(columns, others):
    """Returns the peer's variants with this number of columns, and with DDP or FSDP over the other ranks."""
    return [{"columns": columns, "others": others, "sequence": sequence} for sequence in (0, 1)]


# name -> title, ranks, our keys, the peer's variants
CASES = {
    "none": ("none", 1, {}, peers(1, "ddp")[:1]),
    "1d2": ("1-D over 2", 2, one_d(2, False), peers(2, "ddp")[:1]),
    "1d2-sequence": ("1-D over 2, tokens sharded", 2, one_d(2, True), peers(2, "ddp")[1:]),
    "1d4": ("1-D over 4", 4, one_d(4, False), peers(4, "ddp")[:1]),
    "1d4-sequence": ("1-D over 4, tokens sharded", 4, one_d(4, True), peers(4, "ddp")[1:]),
    "221": ("[2, 2, 1]", 4, deep("2,2,1"), peers(4, "ddp") + peers(2, "fsdp")),
    "222": ("[2, 2, 2]", 8, deep("2,2,2"), peers(4, "ddp") + peers(2, "fsdp")),
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_program_arguments(p)
    p.add_argument("--cases", type=names_of(CASES), default="none,1d2,221" if quick else ",".join(CASES))
    p.add_argument("--sequences", type=int, default=8, help="number of sequences per step")
    p.add_argument("--seq-len", type=int, default=64 if quick else 256)
    p.add_argument("--steps", type=int, default=3 if quick else 12, help="number of measured steps per run")
    p.add_argument("--quick", action="store_true", help="smoke test with few small steps, eager mode and three lines")
    a = p.parse_args()
    find_programs(a)
    return a


def fastest(a, programs, case):
    """Returns the peer's fastest variant of a case."""
    _, ranks, _, ways = CASES[case]
    if ranks == 1:
        return programs.fastest(1, [{**ways[0], "compile": compiled} for compiled in a.compilers])
    of_two = programs.fastest(2, [{**CASES["1d2"][3][0], "loss": loss, "compile": compiled} for loss, compiled in
                                  itertools.product(("parallel", "gathered"), a.compilers)])
    # torch.compile fails for fully_shard with column-parallel layers.
    return programs.fastest(ranks, [{**of_two, **way, **({"compile": "none"} if way["others"] == "fsdp" else {})}
                                    for way in ways])


def turn(a, programs, case, runs):
    """Makes one run of each program and returns its figures."""
    _, ranks, parallel, _ = CASES[case]
    way = runs[0]["way"] if runs else fastest(a, programs, case)
    ours = programs.ours(ranks, a.steps, {f"parallelism.{k}": v for k, v in parallel.items()})
    return {"ours": ours.tokens_per_second(), "waits": ours.waiting(),
            "peer": programs.peer(ranks, a.steps, way).tokens_per_second(), "way": way}


def way_text(way):
    words = {"columns": f"{way['columns']} columns"} if way["columns"] > 1 else {}
    words |= {"others": way["others"].upper()} if way.get("others") == "fsdp" else {}
    words |= {"sequence": "tokens sharded"} if way["sequence"] else {}
    return ", ".join([*words.values(), *([f"{way['loss']} loss"] if way["columns"] > 1 else []),
                      "eager" if way["compile"] == "none" else "compiled"])


def print_table(found):
    print_head(["cut", "ranks", "Orthant tokens/s", "PyTorch tokens/s", "ratio", "from, to",
                "Orthant, fraction of ideal", "PyTorch, fraction of ideal", "Orthant waits"])
    one = median_of(found.get("none", [{"ours": math.nan, "peer": math.nan}]))
    for case, runs in found.items():
        title, ranks, _, _ = CASES[case]
        middle = median_of(runs)
        of_ideal = [f"{middle[who] / (ranks * one[who]):.2f}" if ranks == 2 else "" for who in ("ours", "peer")]
        print_row([title, str(ranks), *speed_cells(runs, way_text(middle["way"])), *of_ideal,
                   f"{100 * middle['waits']:.0f} %"])


def main():
    a = arguments()
    print_setting(a, f"{a.sequences} sequences of {a.seq_len} tokens a step, float32, one thread a rank")
    work = {**SIZES["tiny"], "seq_len": a.seq_len, "global_batch_size": a.sequences, "local_batch_size": a.sequences}
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(a, "tensor.py", work, folder)
        print_table(Runs(a.json).take_turns(a.repeats, a.cases, lambda *case: turn(a, programs, *case)))


if __name__ == "__main__":
    main()
