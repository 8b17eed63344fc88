#!/usr/bin/env python3
"""Compares pipelines with PyTorch's, with real computation: same model, microbatches, ranks, dtype and allocator.

The programs make complete training steps of the 4-layer model of benchmarks/data_parallel on two ranks of one thread,
in float32. Ours is `orthant train`; the peer is benchmarks/peers/pipeline.py: torch.distributed.pipelining over Gloo.
Each of our schedules is compared with the fastest of the peer's corresponding schedules. These are measured first, each
in eager mode and, if the peer's schedule supports compiled stages, with torch.compile. All variants of the peer must
have the same losses, or there is no table.

"fraction of ideal": tokens/s, divided by twice the program's tokens/s on one rank with the same microbatches.
"schedule's fraction": the largest "fraction of ideal" that our schedule allows. It is the time that all computations
take if no rank idles, divided by the time that simulate() gives for the durations measured in the last step. "measured
/ simulated": the time of the last step, divided by that of the simulation (timeline.json). Programs take turns. The
result of a run is the median over its steps without the first five; the table has the median over the runs. "from, to":
the smallest and the largest ratio of a turn.

  python3 benchmarks/pipeline/peers.py [--quick] [--cases none,1f1b,zb_h1,...] [--repeats 3] [--json FILE]
"""
import argparse
import math
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import SIZES, Runs, median_of, names_of, print_head, print_row
from comparison import Programs, add_program_arguments, find_programs, print_setting, speed_cells

RANKS = 2
COMPILED = {"gpipe", "1f1b", "interleaved_1f1b"}  # the peer's schedules that do not split backward
# Our schedule -> the peer's schedules. The peer lacks V-Half and ZB-H1; its other zero-bubble schedules are used.
CASES = {
    "none": [],
    "1f1b": ["gpipe", "1f1b"],
    "interleaved_1f1b": ["interleaved_1f1b"],
    "zb_h1": ["interleaved_zero_bubble", "zbv"],
    "zb_v": ["zbv"],
    "v_half": ["zbv", "dual_pipe_v"],
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_program_arguments(p)
    p.add_argument("--cases", type=names_of(CASES), default="none,1f1b,zb_v" if quick else ",".join(CASES))
    p.add_argument("--microbatches", type=int, default=8)
    p.add_argument("--sequences", type=int, default=2, help="number of sequences per microbatch")
    p.add_argument("--seq-len", type=int, default=64 if quick else 256)
    p.add_argument("--steps", type=int, default=3 if quick else 16, help="number of measured steps per run")
    p.add_argument("--quick", action="store_true", help="smoke test with few small steps, eager mode and three lines")
    a = p.parse_args()
    find_programs(a)
    return a


def ways(a, case):
    """Returns the peer's variants of a case."""
    if case == "none":
        return [{"compile": compiled} for compiled in a.compilers]
    return [{"schedule": schedule, "compile": compiled} for schedule in CASES[case]
            for compiled in (a.compilers if schedule in COMPILED else ["none"])]


def turn(a, programs, case, runs):
    """Makes one run of each program and returns its figures."""
    ranks = 1 if case == "none" else RANKS
    way = runs[0]["way"] if runs else programs.fastest(ranks, ways(a, case))
    keys = {"parallelism.pipeline_parallel_degree": ranks, "parallelism.pipeline_parallel_schedule": case}
    run = {"ours": programs.ours(ranks, a.steps, keys if ranks > 1 else {}).tokens_per_second(),
           "peer": programs.peer(ranks, a.steps, way).tokens_per_second(), "way": way}
    if ranks > 1:
        made_s, simulated_s, computed_s = programs.timeline()
        run |= {"over_simulated": made_s / simulated_s, "simulated_share": computed_s / (ranks * simulated_s)}
    return run


def way_text(way):
    return f"{way.get('schedule', 'none')}, {'eager' if way['compile'] == 'none' else 'compiled'}"


def print_table(found):
    print_head(["schedule", "Orthant tokens/s", "PyTorch tokens/s", "ratio", "from, to", "Orthant, fraction of ideal",
                "schedule's fraction", "PyTorch, fraction of ideal", "measured / simulated"])
    one = median_of(found.get("none", [{"ours": math.nan, "peer": math.nan}]))
    for case, runs in found.items():
        middle = median_of(runs)
        speeds = speed_cells(runs, way_text(middle["way"]))
        if case == "none":
            print_row(["one rank", *speeds, "", "", "", ""])
        else:
            print_row([case, *speeds, f"{middle['ours'] / (RANKS * one['ours']):.2f}",
                       f"{middle['simulated_share']:.2f}", f"{middle['peer'] / (RANKS * one['peer']):.2f}",
                       f"{middle['over_simulated']:.3f}"])


def main():
    a = arguments()
    print_setting(a, f"{a.microbatches} microbatches of {a.sequences} sequences of {a.seq_len} tokens a step, float32, "
                     f"{RANKS} ranks of one thread")
    work = {**SIZES["tiny"], "seq_len": a.seq_len, "global_batch_size": a.microbatches * a.sequences,
            "local_batch_size": a.sequences}
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(a, "pipeline.py", work, folder)
        print_table(Runs(a.json).take_turns(a.repeats, a.cases, lambda *case: turn(a, programs, *case)))


if __name__ == "__main__":
    main()
