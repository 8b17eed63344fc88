#!/usr/bin/env python3
"""Measures how the way in which idle OpenMP threads wait changes tokens/s, on a quiet and on a busy machine.

One rank trains with two threads. The policies take turns, so that other load on the machine affects all of them. The
result of a run is the median over its steps; the table has the median over the runs. Two ratios have bounds. On the
quiet machine the speed must be at least 0.98 of that of `active`, libgomp's own default. On the busy machine it must be
at least that of one thread.

  python3 benchmarks/threads/spinning.py [--steps 60] [--repeats 3] [--counts 1000,10000,100000]
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (SIZES, STEPS_ONLY, Runs, add_json_argument, add_orthant_argument, machine, median_of, orthant_command,
                    print_head, print_row, read_json_lines, write_corpus)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add_orthant_argument(p)
    add_json_argument(p)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--busy", type=int, default=2, help="number of busy programs")
    p.add_argument("--counts", default="", help="further values of GOMP_SPINCOUNT to measure")
    return p.parse_args()


def policies(a):
    """Returns name -> (threads, environment variables)."""
    known = {"default": (2, {}), "one thread": (1, {}), "active": (2, {"GOMP_SPINCOUNT": "300000"}),
             "passive": (2, {"OMP_WAIT_POLICY": "passive"})}
    return known | {f"spin {n}": (2, {"GOMP_SPINCOUNT": n}) for n in a.counts.split(",") if n}


def main():
    a = arguments()
    print(f"{machine()}; {a.repeats} runs each of {a.steps} steps; {a.busy} busy programs\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(a, folder)
        keys = {f"model.{k}": v for k, v in SIZES["tiny"].items() if k != "vocab_size"} | STEPS_ONLY | {
            "data.path": corpus, "data.tokenizer": "byte", "training.steps": a.steps, "training.seq_len": 256,
            "model.max_position_embeddings": 256, "training.global_batch_size": 4, "training.local_batch_size": 4}

        def run(case, _):
            policy, is_busy = case.rsplit(", ", 1)
            threads, environment = policies(a)[policy]
            dump = tempfile.mkdtemp(dir=folder)
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(a.busy * (is_busy == "busy"))]
            try:
                subprocess.run(orthant_command(a.orthant, "train", keys | {"run.threads_per_rank": threads, "run.ranks": 1,
                                                                           "job.dump_folder": dump}, folder),
                               check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
            finally:
                for process in busy:
                    process.kill()
            steps = read_json_lines(os.path.join(dump, "metrics.jsonl"))[5:]
            return {"tokens_per_second": median_of(steps)["tokens_per_second"]}

        cases = [f"{policy}, {load}" for load in ("quiet", "busy") for policy in policies(a)]
        found = Runs(a.json).take_turns(a.repeats, cases, run)
    figures = {case: median_of(runs)["tokens_per_second"] for case, runs in found.items()}
    print_head(["policy", "quiet: tokens/s", "/ active", "busy: tokens/s", "/ one thread"])
    for policy in policies(a):
        quiet, busy = figures[f"{policy}, quiet"], figures[f"{policy}, busy"]
        print_row([policy, f"{quiet:,.0f}", f"{quiet / figures['active, quiet']:.3f}", f"{busy:,.0f}",
                   f"{busy / figures['one thread, busy']:.3f}"])


if __name__ == "__main__":
    main()
