#!/usr/bin/env python3
"""The longest sequence and the largest batch that a given memory per rank can train, by the counting allocator.

For no sequence parallelism (each rank has sequences of its own: data parallelism), ring attention, ring self-attention
and 1-D tensor parallelism, without and with tokens cut between its products, on several ranks: `orthant train` does a
whole step of the 4-layer model of benchmarks/data_parallel, and its largest rank's peak of bytes in tensors
(peak_memory_bytes of metrics.jsonl: weights, gradients and optimizer included) must stay within the limit. Found by
bisection over such runs, from where `orthant plan` says that the limit is; to 1 in 64, or to the smallest step that the
cut allows. The batch: of sequences of --batch-seq-len tokens, in one microbatch, over all ranks.

--plan-only takes the plan's word, to the step, without a run: also of --model bert-base (12 layers, hidden 768, 12
heads, vocabulary 30,522, masked tokens; the weights of a block as many as BERT Base has). Ranks that do not divide the
heads are left out of tensor parallelism.

  python3 benchmarks/sequence/capacity.py [--quick] [--memory-mib 512] [--ranks 1,2,4,8] [--batch-seq-len 1024]

Memory does not depend on what else the machine does, nor on its speed.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile

from capacity_figure import draw

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (SIZES, STEPS_ONLY, add_orthant_argument, names_of, orthant_command, output_of, print_head,
                    print_row, write_corpus)

KINDS = {"none": "no sequence parallelism", "ring_attention": "ring attention",
         "ring_self_attention": "ring self-attention", "tensor": "1-D tensor parallelism",
         "tensor_sequence": "1-D tensor parallelism, tokens cut"}
MODELS = {"tiny": SIZES["tiny"],
          "bert-base": dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
                            num_key_value_heads=12, vocab_size=30522, objective="masked")}
PRECISION = 64


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_orthant_argument(p)
    p.add_argument("--memory-mib", type=float, default=128 if quick else 512, help="of tensors, a rank")
    p.add_argument("--ranks", default="1,2" if quick else "1,2,4,8")
    p.add_argument("--kinds", type=names_of(KINDS), default=",".join(KINDS))
    p.add_argument("--model", choices=MODELS, default="tiny")
    p.add_argument("--key-heads", type=int, help="other than the model's own")
    p.add_argument("--sequences", type=int, default=1, help="of which the longest is sought, at once")
    p.add_argument("--plan-only", action="store_true", help="no runs: what the plan says")
    p.add_argument("--figure", help="an SVG of what was found")
    p.add_argument("--batch-seq-len", type=int, default=256 if quick else 1024)
    p.add_argument("--recompute", action="store_true", help="activation_checkpoint.mode = full")
    p.add_argument("--quick", action="store_true", help="does it work? little memory, two ranks")
    a = p.parse_args()
    a.shape = {**MODELS[a.model], **({"num_key_value_heads": a.key_heads} if a.key_heads else {})}
    return a


class Trained:
    """One step of training some sequences of some length under a kind of parallelism."""

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


def largest_planned(fits):
    """The largest n >= 1 that fits, 1 also if none does."""
    high = 2
    while fits(high):
        high *= 2
    return bisect(high // 2, high, fits)


def largest(fits, planned_fits):
    """The largest n >= 1 that fits, 0 if none: from the plan's answer outwards until the limit is passed, then in."""
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
    """Nothing to cut on one rank; whole heads of tensor parallelism; batches of whole blocks of the ring."""
    if kind == "none" or ranks == 1:
        return kind == "none"
    if kind.startswith("tensor"):
        return a.shape["num_key_value_heads"] % ranks == 0
    return a.batch_seq_len % (2 * ranks) == 0


def measure(a, kind, ranks, corpus, folder):
    """(longest sequence, its peak, its peak by plan), and the same of the largest batch; zeros where nothing fits."""
    limit, trained = a.memory_mib * 2**20, Trained(a, kind, ranks, corpus, folder)
    own = ranks if kind == "none" else 1         # sequences at once, at least
    unit = 16 if kind == "none" else 16 * ranks  # of a length: whole blocks of the zigzag
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
