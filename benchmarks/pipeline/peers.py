#!/usr/bin/env python3
"""Pipelines with real compute beside PyTorch's own: same model, microbatches, ranks, dtype and allocator.

Whole training steps of the 4-layer model of benchmarks/data_parallel on two ranks of one thread, float32. Ours is
`orthant train`; the peer is benchmarks/peers/pipeline.py: torch.distributed.pipelining over Gloo. Each of our schedules
stands beside the fastest of those of the peer that belong to it: tried first, each eager and, where the peer's schedule
takes compiled stages, under torch.compile. All of the peer's ways must show the same losses, or there is no table.

"of ideal" is tokens/s over twice the program's own on one rank, same microbatches. "schedule's" is the most that our
schedule allows of that: what simulate() makes of the durations measured in the last step, over the time that all
computations would take if no rank idled; "measured / simulated" is the last step over that simulation (timeline.json).
Programs take turns; a run's figure is the median over its steps without the first five, the table's is the median over
the runs; "from, to" are the ratios of the turns.

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
COMPILED = {"gpipe", "1f1b", "interleaved_1f1b"}  # of the peer's: those that do not split backward
# Ours -> the peer's. V-Half and ZB-H1 it has not: its zero-bubble schedules stand for them.
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
    p.add_argument("--sequences", type=int, default=2, help="of a microbatch")
    p.add_argument("--seq-len", type=int, default=64 if quick else 256)
    p.add_argument("--steps", type=int, default=3 if quick else 16, help="of a run that count")
    p.add_argument("--quick", action="store_true", help="does it work? few small steps, eager, three lines")
    a = p.parse_args()
    find_programs(a)
    return a


def ways(a, case):
    """The peer's for a case."""
    if case == "none":
        return [{"compile": compiled} for compiled in a.compilers]
    return [{"schedule": schedule, "compile": compiled} for schedule in CASES[case]
            for compiled in (a.compilers if schedule in COMPILED else ["none"])]


def turn(a, programs, case, runs):
    """One run of each program."""
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
    print_head(["schedule", "Orthant tokens/s", "PyTorch tokens/s", "ratio", "from, to", "Orthant of ideal",
                "schedule's", "PyTorch's of ideal", "measured / simulated"])
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
