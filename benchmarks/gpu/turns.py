#!/usr/bin/env python3
"""Measures the cases of cases.py on one GPU in turns: each case in Orthant (train.py), then in PyTorch (steps.py). The
lines of the two are those of train.py and steps.py, and go to PREFIX-train.jsonl and PREFIX-steps.jsonl.

  python3 benchmarks/gpu/turns.py h200
"""
import argparse
import json
import sys

import steps  # from this folder
import torch
import train
from cases import CASES


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", help="of the two files, for example the name of the device")
    parser.add_argument("--orthant", default="build-cuda/orthant", help="program that was built with CUDA")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", file=sys.stderr)
    programs = {"train": lambda case: train.measure(arguments.orthant, case), "steps": steps.measure}
    files = {name: open(f"{arguments.prefix}-{name}.jsonl", "w") for name in programs}
    for case in CASES:
        for name, measure in programs.items():
            try:
                line = measure(case)
                print(json.dumps(line), file=files[name], flush=True)
                print(f"{name}: {case}: {1e3 * line['step_seconds']:.1f} ms", flush=True)
            except RuntimeError as error:  # out of memory, for example: the other cases still run
                print(f"{name}: {case}: {str(error).splitlines()[0]}", file=sys.stderr)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
