"""Helpers that overlap.py and choices.py share: runs of sequence_attention on emulated hosts, in turns, and medians of
its results."""
import json
import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import ROOT, json_lines, machine, median_of, on_hosts

UNITS = {"k": 1e-6, "m": 1e-3, "g": 1}


def gbit(rate):
    return float(rate[:-4]) * UNITS[rate[-4]]


def add_arguments(parser):
    parser.add_argument("--build", default=os.path.join(ROOT, "build"),
                        help="folder of the compiled benchmark programs")
    parser.add_argument("--json", help="file for all results (JSON)")
    parser.add_argument("--quick", action="store_true", help="smoke test with few and small cases")


def shape_flags(a):
    return ["--heads", str(a.heads), "--key-heads", str(a.key_heads), "--head-dim", str(a.head_dim)]


def measure(a, hosts, ranks_per_host, rate, flags):
    """Runs sequence_attention on emulated hosts and returns the JSON lines that it prints. Exits if hosts cannot be
    emulated here."""
    program = os.path.join(a.build, "benchmarks", "sequence_attention")
    if not os.path.exists(program):
        sys.exit(f"{program} does not exist: build it (ninja -C {a.build} sequence_attention), or set its folder "
                 "with --build")
    return json_lines(on_hosts(hosts, ranks_per_host, rate, [program, *flags]))


def take_turns(a, cases, repeats):
    """Runs all cases in turns, `repeats` times each. cases: name -> arguments of measure(). Returns
    (name, tokens, layout) -> median line."""
    found = {}
    for turn in range(repeats):
        for name, case in cases.items():
            print(f"  turn {turn + 1} of {repeats}: {name}", file=sys.stderr)
            for line in measure(a, *case):
                found.setdefault((name, line["tokens"], line["cut"]), []).append(line)
    if a.json:
        with open(a.json, "w") as stream:
            json.dump({"machine": machine(), "results": [{"case": str(key[0]), **line} for key, lines in found.items()
                                                         for line in lines]}, stream, indent=1)
    return {key: median_of(lines) for key, lines in found.items()}
