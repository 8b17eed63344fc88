#!/usr/bin/env python3
"""Trains examples/jargon.toml with AdamW and with Muon at several learning rates, each from the same weights and on the
same tokens, and prints the validation loss of each run. The losses do not depend on the machine's speed.

  python3 benchmarks/optimizers/losses.py --steps 600 --rates 1e-3,3e-3,1e-2
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from common import ROOT, add_orthant_argument, machine, print_head, print_row

OPTIMIZERS = {"adamw": {}, "muon": {"optimizer.momentum": 0.95}}


def validation_loss(a, name, rate, folder):
    settings = {"training.steps": a.steps, "optimizer.name": name, "optimizer.lr": rate, "validation.freq": a.steps,
                "checkpoint.interval": 0, "job.dump_folder": folder, **OPTIMIZERS[name]}
    command = [a.orthant, "train", os.path.join(ROOT, "examples", "jargon.toml")]
    subprocess.run(command + [f"--{key}={value}" for key, value in settings.items()], check=True, cwd=ROOT,
                   stdout=subprocess.DEVNULL)
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return next(record["validation_loss"] for record in reversed(records) if "validation_loss" in record)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    p.add_argument("--steps", type=int, default=600)
    p.add_argument("--rates", default="1e-3,3e-3,1e-2", help="learning rates, separated by commas")
    add_orthant_argument(p)
    a = p.parse_args()
    print(f"{machine()}; {a.steps} steps; validation loss in nats per token\n")
    print_head(["learning rate", *OPTIMIZERS])
    for rate in a.rates.split(","):
        with tempfile.TemporaryDirectory() as folder:
            losses = [validation_loss(a, name, rate, os.path.join(folder, name)) for name in OPTIMIZERS]
        print_row([rate] + [f"{loss:.4f}" for loss in losses])


if __name__ == "__main__":
    main()
