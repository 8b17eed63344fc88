#!/usr/bin/env python3
"""Finds the longest sequence and the largest batch that can be trained with a given memory per rank.

Five layouts are compared on several ranks: no sequence parallelism (each rank has its own sequences: data parallelism),
ring attention, ring self-attention, and 1-D tensor parallelism without and with tokens sharded between its products.
`orthant train` makes one complete step of the 4-layer model of benchmarks/data_parallel. The largest peak of a rank's
tensor memory (peak_memory_bytes of metrics.jsonl, counted by the allocator, with weights, gradients and optimizer) must
be at most the limit. The answer is found by bisection over such runs, starting at the answer of `orthant plan`. Its
precision is 1 in 64, or the smallest step that the sharding allows. The batch consists of sequences of --batch-seq-len
tokens in one microbatch, over all ranks.

--plan-only uses the planned memory, without runs, and finds the exact answer. It is also available for --model
bert-base (12 layers, hidden size 768, 12 heads, vocabulary 30,522, masked tokens; a block has as many weights as BERT
Base's). Tensor parallelism is left out if the number of ranks does not divide the heads.

  python3 benchmarks/sequence/capacity.py [--quick] [--memory-mib 512] [--ranks 1,2,4,8] [--batch-seq-len 1024]

The result depends neither on other load on the machine nor on its speed.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile

from capacity_figure import draw

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (SIZES, STEPS_ONLY, add_orthant_argument, largest_memory_bytes, names_of, orthant_command, output_of,
                    print_head, print_row, write_corpus)

KINDS = {"none": "no sequence parallelism", "ring_attention": "ring attention",
         "ring_self_attention": "ring self-attention", "tensor": "1-D tensor parallelism",
         "tensor_sequence": "1-D tensor parallelism, tokens sharded"}
MODELS = {"tiny": SIZES["tiny"],
          "bert-base": dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
                            num_key_value_heads=12, vocab_size=30522, objective="masked")}
PRECISION = 64


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_orthant_argument(p)
    p.add_argument("--memory-mib", type=float, default=128 if quick else 512,
                   help="limit of tensor memory per rank, in MiB")
    p.add_argument("--ranks", default="1,2" if quick else "1,2,4,8")
    p.add_argument("--kinds", type=names_of(KINDS), default=",".join(KINDS))
    p.add_argument("--model", choices=MODELS, default="tiny")
    p.add_argument("--key-heads", type=int, help="number of key heads; default: that of the model")
    p.add_argument("--sequences", type=int, default=1,
                   help="number of sequences for which the largest length is sought")
    p.add_argument("--plan-only", action="store_true", help="use planned values without runs")
    p.add_argument("--figure", help="file for the figure (SVG)")
    p.add_argument("--batch-seq-len", type=int, default=256 if quick else 1024)
    p.add_argument("--recompute", action="store_true", help="set activation_checkpoint.mode = full")
    p.add_argument("--quick", action="store_true", help="smoke test with little memory and two ranks")
    a = p.parse_args()
    a.shape = {**MODELS[a.model], **({"num_key_value_heads": a.key_heads} if a.key_heads else {})}
    return a


class Trained:
    """One training step with a kind of parallelism, for any number of sequences and any length."""

    def __init__(self, a, kind, ranks, corpus, folder):
        self.a, self.kind, self.ranks, self.folder = a, kind, ranks, folder
        self.keys = {**{f"model.{k}": v for k, v in a.shape.items()}, "run.ranks": ranks,
                     "run.threads_per_rank": 1, "job.dump_folder": os.path.join(folder, "run"), "data.path": corpus,
                     **STEPS_ONLY, "training.steps": 1, "activation_checkpoint.mode": "full" if a.recompute else "none"}
        if kind.startswith("tensor"):
            self.keys |= {"parallelism.tensor_parallel_degree": ranks,
                          "parallelism.tensor_parallel_sequence": "true" if kind == "tensor_sequence" else "false"}
        elif kind != "none":
            self.keys |= {"parallelism.context_parallel_ring": ranks, "parallelism.context_parallel_attention": kind}
        if kind == "ring_self_attention" or kind == "ring_attention" and a.model == "bert-base":
            self.keys["parallelism.context_parallel_placement"] = "contiguous"

    def command(self, name, sequences, length):
        """Returns the command for a microbatch of `sequences` sequences over all ranks."""
        keys = {**self.keys, "training.seq_len": length, "model.max_position_embeddings": length,
                "training.global_batch_size": sequences,
                "training.local_batch_size": sequences // (self.ranks if self.kind == "none" else 1)}
        return orthant_command(self.a.orthant, name, keys, self.folder)

    def planned_bytes(self, sequences, length):
        text = output_of(self.command("plan", sequences, length) + ["--json"])
        return largest_memory_bytes(json.loads(text))

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
    """Returns the largest n in [low, high) that fits, with an error of at most near(low). low must fit."""
    while high - low > near(low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_planned(fits):
    """Returns the largest n >= 1 that fits; also 1 if none fits."""
    high = 2
    while fits(high):
        high *= 2
    return bisect(high // 2, high, fits)


def largest(fits, planned_fits):
    """Returns the largest n >= 1 that fits, or 0 if none fits. The search starts at the plan's answer, and moves away
    in growing steps until it has passed the limit. It then bisects."""
    n = largest_planned(planned_fits)
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


def can_be(a, kind, ranks):
    """Whether the case is possible. One rank has nothing to shard. For tensor parallelism the number of ranks must
    divide the key heads. For a ring 2 * ranks must divide the length of the batch's sequences."""
    if kind == "none" or ranks == 1:
        return kind == "none"
    if kind.startswith("tensor"):
        return a.shape["num_key_value_heads"] % ranks == 0
    return a.batch_seq_len % (2 * ranks) == 0


def measure(a, kind, ranks, corpus, folder):
    """Returns two tuples: (longest sequence, its peak, its planned peak), and the same for the largest batch. They are
    zeros if nothing fits."""
    limit, trained = a.memory_mib * 2**20, Trained(a, kind, ranks, corpus, folder)
    own = ranks if kind == "none" else 1         # smallest number of sequences in a microbatch
    unit = 16 if kind == "none" else 16 * ranks  # lengths are multiples of it, so that zigzag blocks are equal
    length = a.batch_seq_len if kind != "tensor_sequence" else -(-a.batch_seq_len // ranks) * ranks
    found = []
    for case, answer in ((lambda n: (max(own, a.sequences), unit * n), lambda n: unit * n),
                         (lambda n: (own * n, length), lambda n: own * n)):
        peaks, planned = {}, lambda n: trained.planned_bytes(*case(n))

        def fits(n):
            peaks[n] = trained.peak_bytes(*case(n)) if n not in peaks else peaks[n]
            return peaks[n] <= limit

        planned_fits = lambda n: planned(n) <= limit
        n = largest_planned(planned_fits) if a.plan_only else largest(fits, planned_fits)
        expected = planned(n) if n else 0
        found.append((answer(n), peaks.get(n, 0), expected) if expected <= limit or peaks else (0, 0, 0))
    return found


def cells(a, found):
    for answer, peak, planned in found:
        yield f"{answer:,}" if answer else "none"
        yield f"{(planned if a.plan_only else peak) / 2**20:,.1f}"
        if not a.plan_only:
            yield f"{planned / peak:.3f}" if peak else "-"


def main():
    a = arguments()
    print(f"at most {a.memory_mib:g} MiB of tensors a rank; {a.model}, {a.shape['num_key_value_heads']} key heads; "
          f"{'recomputed, ' if a.recompute else ''}float32{', by plan' if a.plan_only else ''}\n")
    peak = ["MiB, by plan"] if a.plan_only else ["peak, MiB", "plan / peak"]
    print_head(["cut by", "ranks", f"longest of {a.sequences}, tokens" if a.sequences > 1 else "longest, tokens", *peak,
                f"most sequences of {a.batch_seq_len:,}", *peak])
    every = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(a, folder)
        for kind in a.kinds:
            for ranks in map(int, a.ranks.split(",")):
                if can_be(a, kind, ranks):
                    found = measure(a, kind, ranks, corpus, folder)
                    every.append((kind, ranks, found[0][0], found[1][0]))
                    print_row([KINDS[kind], str(ranks), *cells(a, found)])
    if a.figure:
        with open(a.figure, "w") as stream:
            stream.write(draw(a, every))


if __name__ == "__main__":
    main()
