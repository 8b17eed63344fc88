#!/usr/bin/env python3
"""Measures how the control plane grows with the number of ranks: requests at the store per rank from start to end,
requests a second while the ranks make steps, and seconds until all ranks have met.

Ranks are processes of the launcher on this machine, without a model and without a transport: tests/launch/many_ranks.h
says how. Each makes steps of a nap of 50 ms. The numbers of ranks take turns, and a figure is the median of the turns.
With `--without-boards` the last column shows the same ranks when each of them asks the store for itself, as all did
before docs/decisions/0027.

  python3 benchmarks/launch/run.py [--quick] [--ranks 64,128,256,512,1024] [--repeats 3] [--figure docs/images/launch.svg]

The table goes to stdout, progress to stderr, and every run to the file of --json.
"""
import argparse
import os
import sys

from figure import draw

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import ROOT, Runs, add_json_argument, json_lines, machine, median_of, output_of, print_head, print_row

STEP_S, STEPS = 0.05, 60


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    p.add_argument("--build", default=os.path.join(ROOT, "build"), help="folder of the compiled benchmark programs")
    p.add_argument("--ranks", default="8,16" if quick else "64,128,256,512,1024")
    p.add_argument("--repeats", type=int, default=1 if quick else 3)
    p.add_argument("--without-boards", action="store_true", help="also run ranks that all ask the store")
    p.add_argument("--figure", help="file for the figure (SVG)")
    p.add_argument("--quick", action="store_true", help="smoke test with few ranks")
    add_json_argument(p)
    return p.parse_args()


def main():
    a = arguments()
    program = os.path.join(a.build, "benchmarks", "launch_growth")
    stub = os.path.join(a.build, "tests", "rank_stub")

    def run(boards):
        def once(ranks, _):
            command = [program, ranks, str(STEPS), str(STEP_S), boards, stub]
            counts = json_lines(output_of(command))[0]
            return {"requests_per_rank": counts["requests"] / counts["ranks"],
                    "requests_per_second": counts["step_requests"] / (STEPS * counts["step_s"]),
                    "start_s": counts["start_s"], "step_s": counts["step_s"], "total_s": counts["total_s"]}
        return once

    runs, numbers = Runs(a.json), a.ranks.split(",")
    found = {ranks: median_of(r) for ranks, r in runs.take_turns(a.repeats, numbers, run("yes"), "boards").items()}
    alone = {}
    if a.without_boards:
        alone = {ranks: median_of(r) for ranks, r in runs.take_turns(a.repeats, numbers, run("no"), "none").items()}
    print_head(["ranks", "requests per rank, start to end", "requests a second in steps", "seconds to start",
                "milliseconds a step", "seconds in all"] + ["requests a second in steps, without boards"] * bool(alone))
    for ranks in numbers:
        figures = found[ranks]
        row = [f"{int(ranks):,}", f"{figures['requests_per_rank']:.1f}", f"{figures['requests_per_second']:.1f}",
               f"{figures['start_s']:.1f}", f"{1000 * figures['step_s']:.1f}", f"{figures['total_s']:.1f}"]
        if alone:
            row.append(f"{alone[ranks]['requests_per_second']:,.0f}")
        print_row(row)
    if a.figure:
        points = {int(ranks): figures for ranks, figures in found.items() if ranks in numbers}
        with open(a.figure, "w") as stream:
            stream.write(draw(points, machine()))


if __name__ == "__main__":
    main()
