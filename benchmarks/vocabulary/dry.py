#!/usr/bin/env python3
"""Measures how long pipeline ranks idle with every placement of a vocabulary, with sleeps in place of computations.

The model for 8 ranks has 32 layers and hidden size 3072, that for 16 ranks has 48 layers and hidden size 4096. Both
have sequences of 2048 tokens and 12 h^2 weights per layer. These are the sizes of Yeung et al. 2024 (arXiv 2411.05288).
Forward and backward of a layer together take 8 ms. build/benchmarks/vocabulary_dry carries out the plan of each
placement, with its messages and barriers; a pass sleeps in proportion to its FLOPs.

"step / balanced": the step time, divided by that of a step in which every rank computes the mean and never idles.
"compute": the largest measured computing time of a rank, divided by the smallest. "parameters" and "peak" are those of
the plan (bfloat16 with float32 masters, not recomputed); "parameters" is the largest number divided by the smallest.

  python3 benchmarks/vocabulary/dry.py [--quick] [--ranks 8,16] [--repeats 3] [--json FILE] [--figure FILE.svg]
"""
import argparse
import json
import os
import sys

from dry_figure import draw

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import ROOT, json_lines, machine, output_of, print_head, print_row

MODELS = {8: {"layers": 32, "hidden-size": 3072, "heads": 24}, 16: {"layers": 48, "hidden-size": 4096, "heads": 32},
          2: {"layers": 8, "hidden-size": 1024, "heads": 16}}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    p.add_argument("--program", default=os.path.join(ROOT, "build", "benchmarks", "vocabulary_dry"))
    p.add_argument("--ranks", default="2" if quick else "8,16")
    p.add_argument("--microbatches", type=int, default=8 if quick else 64)
    p.add_argument("--layer-ms", type=float, default=2 if quick else 8)
    p.add_argument("--vocabularies", default="32768,262144" if quick else "32768,65536,131072,262144")
    p.add_argument("--repeats", type=int, default=1 if quick else 3)
    p.add_argument("--json", help="file for the measurements; if it exists, they are read from it")
    p.add_argument("--figure", help="file for the figure (SVG)")
    p.add_argument("--quick", action="store_true", help="smoke test with two ranks and few short passes")
    a = p.parse_args()
    if unknown := {int(ranks) for ranks in a.ranks.split(",")} - set(MODELS):
        sys.exit(f"--ranks: no model for {unknown}; choose from {', '.join(str(ranks) for ranks in MODELS)}")
    return a


def measure(a):
    found = []
    for ranks in (int(each) for each in a.ranks.split(",")):
        options = {**MODELS[ranks], "ranks": ranks, "microbatches": a.microbatches, "layer-ms": a.layer_ms,
                   "vocabularies": a.vocabularies, "repeats": a.repeats}
        found += json_lines(output_of([a.program, *(word for k, v in options.items() for word in (f"--{k}", str(v)))]))
    return {"machine": machine(), "microbatches": a.microbatches, "found": found}


def print_table(found):
    print_head(["ranks", "vocabulary", "placement", "step, s", "simulated", "measured / simulated", "step / balanced",
                "idle", "own bubble, s", "compute", "parameters", "peak, GiB"])
    for one in found:
        print_row([str(one["ranks"]), f"{one['vocabulary']:,}", one["placement"], f"{one['step_s']:.3f}",
                   f"{one['simulated_s']:.3f}", f"{one['step_s'] / one['simulated_s']:.3f}",
                   f"{one['step_s'] / one['balanced_s']:.2f}", f"{1 - one['balanced_s'] / one['step_s']:.0%}",
                   f"{one['own_bubble_s']:.3f}", f"{one['compute_spread']:.2f}", f"{one['parameter_spread']:.4f}",
                   f"{one['memory_bytes'] / 2**30:.1f}"])


def main():
    a = arguments()
    if a.json and os.path.exists(a.json):
        with open(a.json) as stream:
            measured = json.load(stream)
    else:
        measured = measure(a)
        if a.json:
            with open(a.json, "w") as stream:
                json.dump(measured, stream, indent=1)
    print(f"{measured['machine']}; {measured['microbatches']} microbatches\n")
    print_table(measured["found"])
    if a.figure:
        with open(a.figure, "w") as stream:
            stream.write(draw(measured))


if __name__ == "__main__":
    main()
