#!/usr/bin/env python3
"""Measures how much longer training takes while it saves checkpoints: none, each save waited for, and each save in the
background (checkpoint.async_mode). RESULTS.md has its output.

  python3 benchmarks/checkpoint/saving.py [--ranks 2] [--layers 12] [--steps 41] [--interval 10] [--turns 3]

A run saves after every INTERVAL steps, and, as every run, at its end. "a save" is the time that the whole program takes
longer than without the saves before the end, divided by their number; "at 100 steps" is this time relative to 100
steps, the default interval. Other programs should not use the machine meanwhile.
"""
import argparse
import os
import statistics
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (STEPS_ONLY, Runs, add_json_argument, add_orthant_argument, machine, median_of, orthant_command,
                    output_of, print_head, print_row, read_json_lines, write_corpus)

CASES = {"none": {"checkpoint.interval": 0},
         "waited for": {"checkpoint.async_mode": "disabled"},
         "in the background": {"checkpoint.async_mode": "async"}}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_orthant_argument(p)
    add_json_argument(p)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--steps", type=int, default=41)
    p.add_argument("--interval", type=int, default=10)
    p.add_argument("--turns", type=int, default=3)
    return p.parse_args()


def main():
    a = arguments()
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        dump = os.path.join(folder, "run")
        keys = {**STEPS_ONLY, "run.ranks": a.ranks, "model.hidden_size": 768, "model.intermediate_size": 2048,
                "model.num_hidden_layers": a.layers, "model.num_attention_heads": 12, "model.num_key_value_heads": 12,
                "model.vocab_size": 2048, "training.seq_len": 128, "training.global_batch_size": 4,
                "training.local_batch_size": 1, "training.steps": a.steps, "checkpoint.interval": a.interval,
                "checkpoint.keep_latest_k": 1, "data.path": write_corpus(a, folder), "job.dump_folder": dump}

        def run(case, _):
            begin = time.perf_counter()
            output_of(orthant_command(a.orthant, "train", {**keys, **CASES[case]}, folder))
            seconds = time.perf_counter() - begin
            steps = read_json_lines(os.path.join(dump, "metrics.jsonl"))
            checkpoint = os.path.join(dump, "checkpoints", "latest")
            size = sum(os.path.getsize(os.path.join(path, name))
                       for path, _, names in os.walk(checkpoint) for name in names)
            return {"seconds": seconds, "bytes": float(size),
                    "step_s": statistics.median(step["step_seconds"] for step in steps)}

        found = {case: median_of(runs) for case, runs in Runs(a.json).take_turns(a.turns, CASES, run).items()}
    saves, without = (a.steps - 1) // a.interval, found["none"]["seconds"]
    step = found["none"]["step_s"]
    print(f"{found['none']['bytes'] / 1e9:.2f} GB in a checkpoint, {a.ranks} ranks\n")
    print_head(["saves", "median step, s", "run, s", "a save, s", "at 100 steps"])
    for case, figures in found.items():
        each = (figures["seconds"] - without) / saves
        print_row([case, f"{figures['step_s']:.3f}", f"{figures['seconds']:.2f}", f"{each:.2f}", f"{100 * each / (100 * step):.2f} %"])


if __name__ == "__main__":
    main()
