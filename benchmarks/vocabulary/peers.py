#!/usr/bin/env python3
"""Placements of a vocabulary over two pipeline ranks, with real compute, beside PyTorch's 1F1B.

Whole training steps of the 4-layer, hidden 256 model of benchmarks/data_parallel with larger and larger vocabularies,
on two ranks of one thread, float32. Ours is `orthant train`; the peer is benchmarks/peers/pipeline.py, 1F1B of
torch.distributed.pipelining over Gloo, eager or under torch.compile, whichever is faster at that vocabulary.

"of balanced" says how near a step comes to perfect balance: that step's seconds over this one's. Perfect balance is
plain 1F1B's step (ours, of the same turn) in which both ranks compute the mean of what they compute now, and never
wait: the sum of all Actions' times in its last step (timeline.json) over the ranks, and what of the step is not in the
pipeline (optimizer, norm). "of the gain": the seconds that a step saves of plain 1F1B's over those that perfect balance
saves. Our tokens are bytes, all of them in the first rank's rows: of a rank's work that is rows looked up and added, N
x 256 numbers. Programs take turns; a run's figure is the median over its steps without the first two, the table's is
the median over the runs. Peak: tensors of the largest rank by the allocator, the plan's of each rank, and the largest
process.

  python3 benchmarks/vocabulary/peers.py [--quick] [--vocabularies 8192,...] [--cases 1f1b,...] [--repeats 3]
                                         [--json FILE]
"""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (SIZES, add_program_arguments, find_programs, machine, print_head, print_row, watch_peer,
                    watch_training, write_corpus)

RANKS, FIRST_STEPS, LOSS_BOUND = 2, 2, 1e-5
CASES = {
    "1f1b": ("1f1b", "none"),
    "redistribution": ("1f1b", "redistribution"),
    "interlaced": ("1f1b", "interlaced"),
    "naive": ("1f1b", "naive"),
    "algorithm_1": ("1f1b", "algorithm_1"),
    "algorithm_2": ("1f1b", "algorithm_2"),
    "v_half": ("v_half", "none"),
    "v_half + algorithm_2": ("v_half", "algorithm_2"),
    "PyTorch 1F1B": None,
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_program_arguments(p)
    p.add_argument("--vocabularies", default="1024" if quick else "8192,32768,65536,131072,262144")
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--microbatches", type=int, default=8)
    p.add_argument("--sequences", type=int, default=2, help="of a microbatch")
    p.add_argument("--seq-len", type=int, default=64 if quick else 256)
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="runs of each program a line")
    p.add_argument("--steps", type=int, default=2 if quick else 5, help="of a run that count")
    p.add_argument("--json", help="a file for every run, written after each; runs that it has are not made again")
    p.add_argument("--quick", action="store_true", help="does it work? few small steps, eager, one vocabulary")
    a = p.parse_args()
    a.cases = a.cases.split(",")
    a.vocabularies = [int(size) for size in a.vocabularies.split(",")]
    if unknown := set(a.cases) - set(CASES):
        sys.exit(f"--cases {','.join(unknown)}: there are {', '.join(CASES)}")
    a.no_compile |= a.quick
    find_programs(a)
    return a


def sizes(a, vocabulary):
    return {**SIZES["tiny"], "vocab_size": vocabulary}


def step_seconds(lines):
    return statistics.median(line["step_seconds"] for line in lines[FIRST_STEPS:])


def balanced_share(dump, last_step_s):
    """Of the last step, what it would take if both ranks computed the mean of what they do, and never waited."""
    with open(os.path.join(dump, "timeline.json")) as stream:
        spans = [event for event in json.load(stream)["traceEvents"] if event["ph"] == "X"]
    pipeline_s = 1e-6 * (max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans))
    computed_s = 1e-6 * sum(e["dur"] for e in spans if e["cat"] == "compute")
    return (computed_s / RANKS + last_step_s - pipeline_s) / last_step_s


def run_ours(a, case, vocabulary, corpus, folder):
    schedule, placement = CASES[case]
    keys = {**{f"model.{k}": v for k, v in sizes(a, vocabulary).items()}, "model.max_position_embeddings": a.seq_len,
            "run.ranks": RANKS, "run.threads_per_rank": 1, "data.path": corpus,
            "training.steps": FIRST_STEPS + a.steps, "training.seq_len": a.seq_len,
            "training.global_batch_size": a.microbatches * a.sequences, "training.local_batch_size": a.sequences,
            "optimizer.lr": 3e-4, "parallelism.pipeline_parallel_degree": RANKS,
            "parallelism.pipeline_parallel_schedule": schedule, "parallelism.vocabulary_parallel": placement}
    lines, _, _, resident = watch_training(a, keys, folder)
    dump, step_s = os.path.join(folder, "run"), step_seconds(lines)
    with open(os.path.join(dump, "plan.json")) as stream:
        plan = json.load(stream)
    return {"step_s": step_s, "balanced_s": step_s * balanced_share(dump, lines[-1]["step_seconds"]),
            "loss": lines[-1]["loss"], "peak_bytes": lines[-1]["peak_memory_bytes"], "resident_bytes": resident,
            "planned_bytes": [rank["memory_bytes"]["total"] for rank in plan["per_rank"]]}


def run_peer(a, way, vocabulary, steps, folder):
    keys = {**sizes(a, vocabulary), "seq_len": a.seq_len, "global_batch_size": a.microbatches * a.sequences,
            "local_batch_size": a.sequences, "steps": FIRST_STEPS + steps, "warmup_steps": FIRST_STEPS,
            "schedule": "1f1b", "compile": way}
    lines, _, _, resident, _ = watch_peer(a, "pipeline.py", RANKS, 1, keys, folder)
    return {"step_s": step_seconds(lines), "resident_bytes": resident, "compile": way}


def faster_way(a, vocabulary, folder):
    """Eager or compiled, each tried for two steps."""
    ways = ["none"] if a.no_compile else ["none", "model"]
    return min(ways, key=lambda way: run_peer(a, way, vocabulary, 2, folder)["step_s"]) if ways[1:] else ways[0]


def same_losses(runs, vocabulary):
    """All of ours train the same model on the same tokens."""
    losses = {case: each[0]["loss"] for case, each in runs.items() if each and "loss" in each[0]}
    for case, loss in losses.items():
        if not math.isclose(loss, next(iter(losses.values())), rel_tol=LOSS_BOUND):
            sys.exit(f"vocabulary {vocabulary}: {case} computes something else: losses {losses}")


def measure(a, found):
    """Adds runs to found: by vocabulary (text, as JSON has it) and case."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(a, folder)
        for vocabulary in a.vocabularies:
            runs = found.setdefault(str(vocabulary), {})
            for turn in range(a.repeats):
                for case in a.cases:
                    each = runs.setdefault(case, [])
                    if len(each) > turn:
                        continue
                    if CASES[case]:
                        each.append(run_ours(a, case, vocabulary, corpus, folder))
                    else:
                        way = each[0]["compile"] if each else faster_way(a, vocabulary, folder)
                        each.append(run_peer(a, way, vocabulary, a.steps, folder))
                    print(f"  {turn + 1}/{a.repeats} {vocabulary} {case}: {each[-1]['step_s']:.3f} s", file=sys.stderr,
                          flush=True)
                    if a.json:
                        with open(a.json, "w") as stream:
                            json.dump({"machine": machine(), "runs": found}, stream, indent=1)
            same_losses(runs, vocabulary)


def mib(size):
    return f"{size / 2**20:,.0f}"


def print_table(found):
    print_head(["vocabulary", "placement", "step, s", "plain 1F1B / it", "PyTorch / it", "of balanced", "of the gain",
                "peak, MiB", "by plan, each rank", "process"])
    for vocabulary, runs in found.items():
        for case, each in runs.items():
            def ratio(of, field="step_s"):
                pairs = zip(runs.get(of, []), each)
                ratios = [before[field] / run["step_s"] for before, run in pairs]
                return f"{statistics.median(ratios):.2f}" if ratios else ""

            gains = [(plain["step_s"] - run["step_s"]) / (plain["step_s"] - plain["balanced_s"])
                     for plain, run in zip(runs.get("1f1b", []), each)]
            middle = {key: statistics.median(run[key] for run in each)
                      for key in ("step_s", "resident_bytes", "peak_bytes") if key in each[0]}
            way = {"none": ", eager", "model": ", compiled"}.get(each[0].get("compile"), "")
            print_row([f"{int(vocabulary):,}", case + way, f"{middle['step_s']:.3f}", ratio("1f1b"),
                       ratio("PyTorch 1F1B"), ratio("1f1b", "balanced_s"), f"{statistics.median(gains):.2f}" if gains else "",
                       mib(middle["peak_bytes"]) if "peak_bytes" in middle else "",
                       ", ".join(mib(size) for size in each[0].get("planned_bytes", [])),
                       mib(middle["resident_bytes"])])


def main():
    a = arguments()
    found = {}
    if a.json and os.path.exists(a.json):
        with open(a.json) as stream:
            found = json.load(stream)["runs"]
    print(f"{machine()}; {a.repeats} runs each; {a.microbatches} microbatches of {a.sequences} sequences of "
          f"{a.seq_len} tokens a step, float32, {RANKS} ranks of one thread; peer's allocator: "
          f"{os.path.basename(a.allocator)}\n", flush=True)
    measure(a, found)
    print_table(found)


if __name__ == "__main__":
    main()
