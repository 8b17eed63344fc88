#!/usr/bin/env python3
"""Tensor parallelism with real compute beside PyTorch's own: same model, tokens, ranks, dtype and allocator.

Whole training steps of the 4-layer model of benchmarks/data_parallel, float32, one thread a rank. Ours is `orthant
train`; the peer is benchmarks/peers/tensor.py: DTensor's parallelize_module over Gloo. 1-D on 2 and 4 ranks is compared
with the peer's, with tokens cut between the products and without. [2, 2, 1] and [2, 2, 2] (rows, columns, depth), which
PyTorch has not, are compared with the fastest of what it has on as many ranks that holds each weight as often: its 1-D
over four, in two copies under DistributedDataParallel for depth, or 1-D over two under fully_shard over the rest.

How the loss is formed (of gathered logits or of their parts) and whether torch.compile pays is tried on two ranks, and
the fastest way stands for all lines (but fully_shard is eager: compiled, it fails). The peer's variants must show the
same losses, or there is no table. "of ideal" is tokens/s over twice the program's own on one rank, on two ranks
only: more share this machine's cores. Programs take turns; a run's figure is the median over its steps without the
first five, the table's is the median over the runs; "from, to" are the ratios of the turns.

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
    """PyTorch's ways to have so many columns, and over the other ranks DDP or FSDP."""
    return [{"columns": columns, "others": others, "sequence": sequence} for sequence in (0, 1)]


# name -> title, ranks, our keys, the peer's ways
CASES = {
    "none": ("none", 1, {}, peers(1, "ddp")[:1]),
    "1d2": ("1-D over 2", 2, one_d(2, False), peers(2, "ddp")[:1]),
    "1d2-sequence": ("1-D over 2, tokens cut", 2, one_d(2, True), peers(2, "ddp")[1:]),
    "1d4": ("1-D over 4", 4, one_d(4, False), peers(4, "ddp")[:1]),
    "1d4-sequence": ("1-D over 4, tokens cut", 4, one_d(4, True), peers(4, "ddp")[1:]),
    "221": ("[2, 2, 1]", 4, deep("2,2,1"), peers(4, "ddp") + peers(2, "fsdp")),
    "222": ("[2, 2, 2]", 8, deep("2,2,2"), peers(4, "ddp") + peers(2, "fsdp")),
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_program_arguments(p)
    p.add_argument("--cases", type=names_of(CASES), default="none,1d2,221" if quick else ",".join(CASES))
    p.add_argument("--sequences", type=int, default=8, help="of a step")
    p.add_argument("--seq-len", type=int, default=64 if quick else 256)
    p.add_argument("--steps", type=int, default=3 if quick else 12, help="of a run that count")
    p.add_argument("--quick", action="store_true", help="does it work? few small steps, eager, three lines")
    a = p.parse_args()
    find_programs(a)
    return a


def fastest(a, programs, case):
    """The peer's fastest way to run a case."""
    _, ranks, _, ways = CASES[case]
    if ranks == 1:
        return programs.fastest(1, [{**ways[0], "compile": compiled} for compiled in a.compilers])
    of_two = programs.fastest(2, [{**CASES["1d2"][3][0], "loss": loss, "compile": compiled} for loss, compiled in
                                  itertools.product(("parallel", "gathered"), a.compilers)])
    # With fully_shard over column-parallel layers torch.compile fails.
    return programs.fastest(ranks, [{**of_two, **way, **({"compile": "none"} if way["others"] == "fsdp" else {})}
                                    for way in ways])


def turn(a, programs, case, runs):
    """One run of each program."""
    _, ranks, parallel, _ = CASES[case]
    way = runs[0]["way"] if runs else fastest(a, programs, case)
    ours = programs.ours(ranks, a.steps, {f"parallelism.{k}": v for k, v in parallel.items()})
    return {"ours": ours.tokens_per_second(), "waits": ours.waiting(),
            "peer": programs.peer(ranks, a.steps, way).tokens_per_second(), "way": way}


def way_text(way):
    words = {"columns": f"{way['columns']} columns"} if way["columns"] > 1 else {}
    words |= {"others": way["others"].upper()} if way.get("others") == "fsdp" else {}
    words |= {"sequence": "tokens cut"} if way["sequence"] else {}
    return ", ".join([*words.values(), *([f"{way['loss']} loss"] if way["columns"] > 1 else []),
                      "eager" if way["compile"] == "none" else "compiled"])


def print_table(found):
    print_head(["cut", "ranks", "Orthant tokens/s", "PyTorch tokens/s", "ratio", "from, to", "Orthant of ideal",
                "PyTorch's", "Orthant waits"])
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
