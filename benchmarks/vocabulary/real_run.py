#!/usr/bin/env python3
"""A real run with a vocabulary of 32,000 words cut over four pipeline ranks by algorithm 2: one rank's losses?

Both train examples/large_vocabulary.toml on the Jargon File, in 32,000 words that sentencepiece learns of it, float64.
The loss of a step may be off by 1e-10 of itself, and by what weights have drifted by, with 1e-10 for gradients; exits
with 1 where that is passed. That bound knows nothing of how training itself makes a difference grow, at this learning
rate about tenfold every ten steps once it learns: hence 60 steps, and --dtype float32 shows it, and judges nothing.

  python3 benchmarks/vocabulary/real_run.py [--quick] [--steps 60] [--schedule 1f1b] [--layout-only KEY=VALUE]
                                            [--dtype float32]

--layout-only: a setting for the four ranks alone; what changes the numbers must make this fail.
"""
import argparse
import json
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (ROOT, STEPS_ONLY, add_orthant_argument, loss_bounds, machine, output_of, print_head, print_row,
                    read_json_lines, relative)

RUN_FILE = os.path.join(ROOT, "examples", "large_vocabulary.toml")
LOSS_BOUND, GRADIENT_BOUND, MAX_NORM = 1e-10, 1e-10, 1.0


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_orthant_argument(p)
    p.add_argument("--steps", type=int, default=3 if quick else 60)
    p.add_argument("--rows", type=int, default=10, help="of the table; all steps are judged")
    p.add_argument("--schedule", default="1f1b")
    p.add_argument("--dtype", default="float64")
    p.add_argument("--layout-only", action="append", default=[], metavar="KEY=VALUE")
    p.add_argument("--quick", action="store_true", help="does it work? three steps")
    return p.parse_args()


def train(a, ranks, folder, *settings):
    """The run's steps, and its number of parameters."""
    dump = os.path.join(folder, f"{ranks}")
    keys = {**STEPS_ONLY, "job.dump_folder": dump, "data.tokenizer": "train:32000", "training.steps": a.steps,
            "training.max_norm": MAX_NORM, "training.dtype": a.dtype, "run.ranks": ranks,
            "parallelism.pipeline_parallel_degree": ranks}
    run = [RUN_FILE, *(f"{key}={value}" for key, value in keys.items()), *settings]
    output_of([a.orthant, "train", *run])
    with open(os.path.join(dump, "plan.json")) as stream:
        plan = json.load(stream)
    return read_json_lines(os.path.join(dump, "metrics.jsonl")), plan["parameters"]["count"]


def main():
    a = arguments()
    with tempfile.TemporaryDirectory() as folder:
        one, parameters = train(a, 1, folder, "parallelism.vocabulary_parallel=none")
        four, _ = train(a, 4, folder, f"parallelism.pipeline_parallel_schedule={a.schedule}", *a.layout_only)
    bounds = loss_bounds(one, parameters, LOSS_BOUND, GRADIENT_BOUND, MAX_NORM)
    errors = [relative(layout["loss"], oracle["loss"]) for oracle, layout in zip(one, four)]
    print(f"{machine()}; {parameters:,} parameters, {a.steps} steps, {a.dtype}, {a.schedule}\n")
    print_head(["step", "loss, 1 rank", "loss, 4 ranks", "relative difference", "bound", "MiB, 1 rank",
                "MiB a rank, 4 ranks"])
    every = max(1, a.steps // a.rows)
    for i, (oracle, layout) in enumerate(zip(one, four)):
        if i == 0 or (i + 1) % every == 0:
            print_row([str(oracle["step"]), f"{oracle['loss']:.10f}", f"{layout['loss']:.10f}", f"{errors[i]:.1e}",
                       f"{bounds[i]:.1e}", *(f"{run['peak_memory_bytes'] / 2**20:,.0f}" for run in (oracle, layout))])
    print(f"\nlargest relative difference of all {len(one)} steps: {max(errors):.1e}")
    if len(one) != a.steps or len(four) != a.steps:
        sys.exit(f"{len(one)} and {len(four)} steps instead of {a.steps}")
    if a.dtype == "float64" and any(error > bound for error, bound in zip(errors, bounds)):
        sys.exit("a loss is further off than its bound")


if __name__ == "__main__":
    main()
