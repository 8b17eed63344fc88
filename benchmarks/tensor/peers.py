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
import json
import math
import os
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (SIZES, WARMUP, add_program_arguments, find_programs, machine, print_head, print_row, watch_peer,
                    watch_training, write_corpus)

LOSS_BOUND = 1e-5  # relative, of the peer's losses among themselves: float32, other orders of sums, a few steps


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
    p.add_argument("--cases", default="none,1d2,221" if quick else ",".join(CASES))
    p.add_argument("--sequences", type=int, default=8, help="of a step")
    p.add_argument("--seq-len", type=int, default=64 if quick else 256)
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="runs of each program a line")
    p.add_argument("--steps", type=int, default=3 if quick else 12, help="of a run that count")
    p.add_argument("--json", help="a file for every run, written after each")
    p.add_argument("--quick", action="store_true", help="does it work? few small steps, eager, three lines")
    a = p.parse_args()
    if unknown := set(a.cases.split(",")) - set(CASES):
        sys.exit(f"--cases {','.join(unknown)}: there are {', '.join(CASES)}")
    a.no_compile |= a.quick
    find_programs(a)
    return a


def tokens_per_second(a, lines):
    return a.sequences * a.seq_len / statistics.median(line["step_seconds"] for line in lines[WARMUP:])


def run_ours(a, case, corpus, folder):
    """Tokens/s, and the share of a step that rank 0 waits for messages."""
    _, ranks, parallel, _ = CASES[case]
    keys = {**{f"model.{k}": v for k, v in SIZES["tiny"].items()}, "model.max_position_embeddings": a.seq_len,
            "run.ranks": ranks, "run.threads_per_rank": 1, "data.path": corpus, "training.steps": WARMUP + a.steps,
            "training.seq_len": a.seq_len, "training.global_batch_size": a.sequences,
            "training.local_batch_size": a.sequences, "optimizer.lr": 3e-4,
            **{f"parallelism.{k}": v for k, v in parallel.items()}}
    lines = watch_training(a, keys, folder)[0]
    waits = (line["communication_seconds"] / line["step_seconds"] for line in lines[WARMUP:])
    return tokens_per_second(a, lines), statistics.median(waits)


class Peer:
    """The peer's runs, the losses that all of them must show, and what was found to be fastest."""

    def __init__(self, a, folder):
        self.a, self.folder, self.losses, self.way = a, folder, None, None

    def run(self, ranks, way, steps):
        a = self.a
        keys = {**SIZES["tiny"], "seq_len": a.seq_len, "global_batch_size": a.sequences, "steps": WARMUP + steps, **way}
        lines, _, _, _, summary = watch_peer(a, "tensor.py", ranks, 1, keys, self.folder)
        self.losses = self.losses or summary["losses"]
        for mine, first in zip(summary["losses"], self.losses):
            if not math.isclose(mine, first, rel_tol=LOSS_BOUND):
                sys.exit(f"the peer's {way} computes something else: loss {mine} where another has {first}")
        return tokens_per_second(a, lines)

    def fastest(self, ranks, ways):
        tried = []
        for way in ways:
            tried.append((self.run(ranks, way, 3), way))
            print(f"  peer, {ranks} ranks, {way}: {tried[-1][0]:,.0f} tokens/s", file=sys.stderr, flush=True)
        return max(tried, key=lambda entry: entry[0])[1]

    def fastest_of(self, case):
        """The fastest way to run a case."""
        _, ranks, _, ways = CASES[case]
        compilers = ["none"] if self.a.no_compile else ["none", "model"]
        if ranks == 1:
            return self.fastest(1, [{**ways[0], "compile": compiled} for compiled in compilers])
        if self.way is None:  # on two ranks, once
            self.way = self.fastest(2, [{**CASES["1d2"][3][0], "loss": loss, "compile": compiled} for loss, compiled in
                                        itertools.product(("parallel", "gathered"), compilers)])
        ways = [{**self.way, **way} for way in ways]
        for way in ways:
            if way["others"] == "fsdp":
                way["compile"] = "none"  # with fully_shard over column-parallel layers torch.compile fails
        return self.fastest(ranks, ways) if len(ways) > 1 else ways[0]


def way_text(way):
    words = {"columns": f"{way['columns']} columns"} if way["columns"] > 1 else {}
    words |= {"others": way["others"].upper()} if way.get("others") == "fsdp" else {}
    words |= {"sequence": "tokens cut"} if way["sequence"] else {}
    return ", ".join([*words.values(), *([f"{way['loss']} loss"] if way["columns"] > 1 else []),
                      "eager" if way["compile"] == "none" else "compiled"])


def print_table(found):
    print_head(["cut", "ranks", "Orthant tokens/s", "PyTorch tokens/s", "ratio", "from, to", "Orthant of ideal",
                "PyTorch's", "Orthant waits"])
    medians = {case: [statistics.median(run[who] for run in runs) for who in ("ours", "peer", "waits")]
               for case, (runs, _) in found.items()}
    for case, (runs, way) in found.items():
        title, ranks, _, _ = CASES[case]
        ours, peer, waits = medians[case]
        ratios = [run["ours"] / run["peer"] for run in runs]
        of_ideal = [f"{mine / (ranks * one):.2f}" if ranks == 2 else "" for mine, one in
                    zip((ours, peer), medians.get("none", (math.nan, math.nan)))]
        print_row([title, str(ranks), f"{ours:,.0f}", f"{peer:,.0f} ({way_text(way)})", f"{ours / peer:.2f}x",
                   f"{min(ratios):.2f}, {max(ratios):.2f}", *of_ideal, f"{100 * waits:.0f} %"])


def main():
    a = arguments()
    print(f"{machine()}; {a.repeats} runs each; {a.sequences} sequences of {a.seq_len} tokens a step, float32, one "
          f"thread a rank; peer's allocator: {os.path.basename(a.allocator)}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus, peer = write_corpus(a, folder), Peer(a, folder)
        found = {case: ([], peer.fastest_of(case)) for case in a.cases.split(",")}
        for turn in range(a.repeats):
            for case, (runs, way) in found.items():
                ours, waits = run_ours(a, case, corpus, folder)
                runs.append({"ours": ours, "waits": waits, "peer": peer.run(CASES[case][1], way, a.steps)})
                print(f"  {turn + 1}/{a.repeats} {CASES[case][0]}: ours {ours:,.0f}, peer {runs[-1]['peer']:,.0f} "
                      "tokens/s", file=sys.stderr, flush=True)
                if a.json:
                    with open(a.json, "w") as stream:
                        json.dump({"machine": machine(), "cases": {name: {"way": it[1], "runs": it[0]}
                                                                   for name, it in found.items()}}, stream, indent=1)
    print_table(found)


if __name__ == "__main__":
    main()
