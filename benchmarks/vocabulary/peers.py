#!/usr/bin/env python3
"""Compares placements of a vocabulary over two pipeline ranks, with real computation, with PyTorch's 1F1B.

The programs make complete training steps of the 4-layer model with hidden size 256 of benchmarks/data_parallel, with
growing vocabularies, on two ranks of one thread, in float32. Ours is `orthant train`; the peer is
benchmarks/peers/pipeline.py: 1F1B of torch.distributed.pipelining over Gloo, in eager mode or with torch.compile,
whichever is faster for the vocabulary.

"fraction of balanced": the time of a perfectly balanced step, divided by that of this step. The balanced step is our
plain 1F1B's step of the same turn, if both ranks computed the mean of their computing times and never waited. Its time
is the sum of all Actions' times in the last step (timeline.json) divided by the ranks, plus the time of the step
outside the pipeline (optimizer, norm). "fraction of the gain": the time that a step saves compared with plain 1F1B's,
divided by the time that the balanced step saves. Our tokens are bytes, so all of them are in the first rank's rows;
this affects only the lookup and the addition of rows, N x 256 numbers. Programs take turns. The result of a run is the
median over its steps without the first two; the table has the median over the runs. There are three peaks: the tensors
of the largest rank, counted by the allocator; the planned tensors of each rank; and the largest process.

  python3 benchmarks/vocabulary/peers.py [--quick] [--vocabularies 8192,...] [--cases 1f1b,...] [--repeats 3]
                                         [--json FILE]
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import SIZES, Runs, by_rank, median_of, names_of, print_head, print_row
from comparison import Programs, add_program_arguments, check_losses, find_programs, print_setting

RANKS, WARMUP = 2, 2
CASES = {
    "1f1b": ("1f1b", "none"),
    "redistribution": ("1f1b", "redistribution"),
    "interlaced": ("1f1b", "interlaced"),
    "naive": ("1f1b", "naive"),
    "algorithm_1": ("1f1b", "algorithm_1"),
    "algorithm_2": ("1f1b", "algorithm_2"),
    "v_half": ("v_half", "none"),
    "v_half + algorithm_2": ("v_half", "algorithm_2"),
    "zb_v + algorithm_2": ("zb_v", "algorithm_2"),
    "PyTorch 1F1B": None,
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_program_arguments(p)
    p.add_argument("--vocabularies", default="1024" if quick else "8192,32768,65536,131072,262144")
    p.add_argument("--cases", type=names_of(CASES), default=",".join(CASES))
    p.add_argument("--microbatches", type=int, default=8)
    p.add_argument("--sequences", type=int, default=2, help="number of sequences per microbatch")
    p.add_argument("--seq-len", type=int, default=64 if quick else 256)
    p.add_argument("--steps", type=int, default=2 if quick else 5, help="number of measured steps per run")
    p.add_argument("--quick", action="store_true",
                   help="smoke test with few small steps, eager mode and one vocabulary")
    a = p.parse_args()
    find_programs(a)
    return a


def run_ours(a, programs, case):
    schedule, placement = CASES[case]
    run = programs.ours(RANKS, a.steps, {"parallelism.pipeline_parallel_degree": RANKS,
                                         "parallelism.pipeline_parallel_schedule": schedule,
                                         "parallelism.vocabulary_parallel": placement})
    last, (pipeline_s, _, computed_s) = run.lines[-1], programs.timeline()
    # The balanced time of the last step, if both ranks computed the mean and never waited, as a fraction of its time.
    balanced_share = (computed_s / RANKS + last["step_seconds"] - pipeline_s) / last["step_seconds"]
    with open(os.path.join(programs.dump, "plan.json")) as stream:
        plan = json.load(stream)
    return {"step_s": run.step_s(), "balanced_s": run.step_s() * balanced_share, "loss": last["loss"],
            "peak_bytes": last["peak_memory_bytes"], "resident_bytes": run.resident_bytes,
            "planned_bytes": by_rank(plan, lambda ranks: ranks["memory_bytes"]["total"])}


def run_peer(a, programs, runs):
    ways = [{"schedule": "1f1b", "compile": compiled} for compiled in a.compilers]
    way = {**ways[0], "compile": runs[0]["compile"]} if runs else programs.fastest(RANKS, ways, 2)
    run = programs.peer(RANKS, a.steps, way)
    return {"step_s": run.step_s(), "resident_bytes": run.resident_bytes, "compile": way["compile"]}


def measure(a, measured, vocabulary, folder):
    """Adds the runs of a vocabulary. Checks that all of ours have the same loss, because they train the same model on
    the same tokens."""
    work = {**SIZES["tiny"], "vocab_size": vocabulary, "seq_len": a.seq_len,
            "global_batch_size": a.microbatches * a.sequences, "local_batch_size": a.sequences}
    programs = Programs(a, "pipeline.py", work, folder, WARMUP)
    found = measured.take_turns(a.repeats, a.cases, lambda case, runs: run_ours(a, programs, case) if CASES[case]
                                else run_peer(a, programs, runs), str(vocabulary))
    losses = {case: runs[0]["loss"] for case, runs in found.items() if "loss" in runs[0]}
    for case, loss in losses.items():
        check_losses([loss], losses.values(), f"vocabulary {vocabulary}, {case}")


def mib(size):
    return f"{size / 2**20:,.0f}"


def print_table(found):
    print_head(["vocabulary", "placement", "step, s", "plain 1F1B / this", "PyTorch / this", "fraction of balanced",
                "fraction of the gain",
                "peak, MiB", "by plan, each rank", "process"])
    for vocabulary, cases in found.items():
        for case, runs in cases.items():
            def ratio(of, field="step_s"):
                ratios = [before[field] / run["step_s"] for before, run in zip(cases.get(of, []), runs)]
                return f"{statistics.median(ratios):.2f}" if ratios else ""

            gains = [(plain["step_s"] - run["step_s"]) / (plain["step_s"] - plain["balanced_s"])
                     for plain, run in zip(cases.get("1f1b", []), runs)]
            middle = median_of(runs)
            way = {"none": ", eager", "model": ", compiled"}.get(middle.get("compile"), "")
            print_row([f"{int(vocabulary):,}", case + way, f"{middle['step_s']:.3f}", ratio("1f1b"),
                       ratio("PyTorch 1F1B"), ratio("1f1b", "balanced_s"),
                       f"{statistics.median(gains):.2f}" if gains else "",
                       mib(middle["peak_bytes"]) if "peak_bytes" in middle else "",
                       ", ".join(mib(size) for size in middle.get("planned_bytes", [])),
                       mib(middle["resident_bytes"])])


def main():
    a = arguments()
    measured = Runs(a.json)
    print_setting(a, f"{a.microbatches} microbatches of {a.sequences} sequences of {a.seq_len} tokens a step, float32, "
                     f"{RANKS} ranks of one thread")
    with tempfile.TemporaryDirectory() as folder:
        for vocabulary in map(int, a.vocabularies.split(",")):
            measure(a, measured, vocabulary, folder)
    print_table(measured.found)


if __name__ == "__main__":
    main()
