#!/usr/bin/env python3
"""The longest sequence and the largest batch that a given memory per rank can train, by the counting allocator.

For no sequence parallelism (each rank has sequences of its own: data parallelism), ring attention and ring self-
attention on several ranks: `orthant train` does a whole step of the 4-layer model of benchmarks/data_parallel, and its
largest rank's peak of bytes in tensors (peak_memory_bytes of metrics.jsonl: weights, gradients and optimizer included)
must stay within the limit. Found by bisection over such runs, from where `orthant plan` says that the limit is; to 1
in 64, or to the smallest step that the cut allows. The batch: of sequences of --batch-seq-len tokens, in one
microbatch, over all ranks.

  python3 benchmarks/sequence/capacity.py [--quick] [--memory-mib 512] [--ranks 1,2,4,8] [--batch-seq-len 1024]

Memory does not depend on what else the machine does, nor on its speed.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (SIZES, STEPS_ONLY, add_orthant_argument, orthant_command, output_of, print_head, print_row,
                    write_corpus)

KINDS = {"none": "no sequence parallelism", "ring_attention": "ring attention",
         "ring_self_attention": "ring self-attention"}
PRECISION = 64


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_orthant_argument(p)
    p.add_argument("--memory-mib", type=float, default=128 if quick else 512, help="of tensors, a rank")
    p.add_argument("--ranks", default="1,2" if quick else "1,2,4,8")
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--batch-seq-len", type=int, default=256 if quick else 1024)
    p.add_argument("--recompute", action="store_true", help="activation_checkpoint.mode = full")
    p.add_argument("--quick", action="store_true", help="does it work? little memory, two ranks")
    return p.parse_args()


class Trained:
    """One step of training some sequences of some length under a kind of parallelism."""

    def __init__(self, a, kind, ranks, corpus, folder):
        self.a, self.kind, self.ranks, self.folder = a, kind, ranks, folder
        self.keys = {**{f"model.{k}": v for k, v in SIZES["tiny"].items()}, "run.ranks": ranks,
                     "run.threads_per_rank": 1, "job.dump_folder": os.path.join(folder, "run"), "data.path": corpus,
                     **STEPS_ONLY, "training.steps": 1, "activation_checkpoint.mode": "full" if a.recompute else "none"}
        if kind != "none":
            self.keys |= {"parallelism.context_parallel_ring": ranks, "parallelism.context_parallel_attention": kind}
        if kind == "ring_self_attention":
            self.keys["parallelism.context_parallel_placement"] = "contiguous"

    def command(self, name, sequences, length):
        """sequences: in a microbatch of all ranks."""
        keys = {**self.keys, "training.seq_len": length, "model.max_position_embeddings": length,
                "training.global_batch_size": sequences,
                "training.local_batch_size": sequences // (self.ranks if self.kind == "none" else 1)}
        return orthant_command(self.a.orthant, name, keys, self.folder)

    def planned_bytes(self, sequences, length):
        text = output_of(self.command("plan", sequences, length) + ["--json"])
        return max(rank["memory_bytes"]["total"] for rank in json.loads(text)["per_rank"])

    def peak_bytes(self, sequences, length):
        dump = self.keys["job.dump_folder"]
        shutil.rmtree(dump, ignore_errors=True)
        output_of(self.command("train", sequences, length))
        with open(os.path.join(dump, "metrics.jsonl")) as stream:
            peak = max(json.loads(line).get("peak_memory_bytes", 0) for line in stream)
        print(f"  {KINDS[self.kind]}, {self.ranks} ranks: {sequences} x {length} tokens, {peak / 2**20:.1f} MiB",
              file=sys.stderr)
        return peak


def bisect(low, high, fits, near=lambda low: 1):
    """The largest n in [low, high) that fits, low being known to; not nearer than near(low)."""
    while high - low > near(low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest(fits, planned_fits):
    """The largest n >= 1 that fits, 0 if none: from the plan's answer outwards until the limit is passed, then in."""
    high = 2
    while planned_fits(high):
        high *= 2
    n = bisect(1, high, planned_fits)
    step = max(1, n // PRECISION)
    if fits(n):
        low = n
        while fits(low + step):
            low, step = low + step, 2 * step
        high = low + step
    else:
        high = n
        while high > 1 and not fits(max(1, high - step)):
            high, step = max(1, high - step), 2 * step
        low = max(1, high - step) if high > 1 else 0
    return bisect(low, high, fits, lambda low: max(1, low // PRECISION))


def measure(a, kind, ranks, corpus, folder):
    """(longest sequence, its peak, largest batch, its peak)"""
    limit, trained = a.memory_mib * 2**20, Trained(a, kind, ranks, corpus, folder)
    own = ranks if kind == "none" else 1  # sequences at once, at least
    unit = 16 * ranks                     # of a length: whole blocks of the zigzag
    found = []
    for case in (lambda n: (own, unit * n), lambda n: (own * n, a.batch_seq_len)):
        peaks = {}

        def fits(n):
            peaks[n] = trained.peak_bytes(*case(n)) if n not in peaks else peaks[n]
            return peaks[n] <= limit

        n = largest(fits, lambda n: trained.planned_bytes(*case(n)) <= limit)
        found.append((case(n) if n else (0, 0), peaks.get(n, 0)))
    ((_, length), length_peak), ((batch, _), batch_peak) = found
    return length, length_peak, batch, batch_peak


def main():
    a = arguments()
    print(f"at most {a.memory_mib:g} MiB of tensors a rank; {'recomputed, ' if a.recompute else ''}float32\n")
    print_head(["sequences cut by", "ranks", "longest, tokens", "peak, MiB", f"most sequences of {a.batch_seq_len:,}",
                "peak, MiB"])
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(a, folder)
        for kind in a.kinds.split(","):
            for ranks in map(int, a.ranks.split(",")):
                if ranks == 1 and kind != "none":
                    continue  # nothing to cut
                length, length_peak, batch, batch_peak = measure(a, kind, ranks, corpus, folder)
                print_row([KINDS[kind], str(ranks), f"{length:,}", f"{length_peak / 2**20:.1f}", f"{batch:,}",
                           f"{batch_peak / 2**20:.1f}"])


if __name__ == "__main__":
    main()
