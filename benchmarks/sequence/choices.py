#!/usr/bin/env python3
"""Which ulysses x ring is fastest for each ratio of inner to outer link rate, and does `orthant plan` name it?

One layer's attention, forward and backward, on 2 emulated hosts of 2 ranks each (benchmarks/hosts), for all three cuts
over four ranks: Ulysses over all, Ulysses within a host and the ring between hosts, and the ring over all. One
sequence, float32. The ratio is measured: what a rank sends a second to its neighbour on the host, over what it sends
to the other host, all ranks at once. The best by plan is what `orthant plan` marks for the same layer; it knows bytes,
and no rates.

  python3 benchmarks/sequence/choices.py [--quick] [--rates 100mbit,none] [--tokens 512] [--figure docs/images/usp.svg]

Needs root, like benchmarks/hosts. The median of the runs; all rates take turns.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from choices_figure import draw
from emulated import ROOT, add_arguments, gbit, machine, print_head, print_row, shape_flags, take_turns

HOSTS = RANKS_PER_HOST = 2
CUTS = {"4x1": "ulysses 4 x ring 1", "2x2": "ulysses 2 x ring 2", "1x4": "ulysses 1 x ring 4"}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    p.add_argument("--rates", default="300mbit,3gbit" if quick else "100mbit,300mbit,1gbit,3gbit,10gbit,none")
    p.add_argument("--tokens", default="256" if quick else "512,2048", help="of a rank")
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--key-heads", type=int, default=2)
    p.add_argument("--head-dim", type=int, default=64)
    p.add_argument("--turns", type=int, default=3, help="of the three cuts within a run")
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="runs of each rate")
    p.add_argument("--figure", help="an SVG of the times")
    add_arguments(p)
    return p.parse_args()


def best_by_plan(a, tokens):
    """The cut that `orthant plan` marks as best for such a layer."""
    length = HOSTS * RANKS_PER_HOST * tokens
    keys = {"run.ranks": HOSTS * RANKS_PER_HOST, "model.hidden_size": a.heads * a.head_dim,
            "model.num_attention_heads": a.heads, "model.num_key_value_heads": a.key_heads,
            "model.max_position_embeddings": length, "training.seq_len": length, "training.global_batch_size": 1,
            "training.local_batch_size": 1, "data.tokenizer": "byte", "data.path": os.path.join(ROOT, "README.md"),
            "parallelism.context_parallel_ulysses": 2, "parallelism.context_parallel_ring": 2}
    with tempfile.NamedTemporaryFile(suffix=".toml") as empty:
        done = subprocess.run([os.path.join(a.build, "orthant"), "plan", empty.name, "--json",
                               *(f"{k}={v}" for k, v in keys.items())], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"orthant plan failed with {done.returncode}:\n{done.stderr}")
    best = next(choice for choice in json.loads(done.stdout)["sequence_choices"] if choice["best"])
    return f"{best['ulysses']}x{best['ring']}"


def step_ms(line):
    return line["forward_ms"] + line["backward_ms"]


def rate_text(rate):
    return "no limit" if rate == "none" else f"{gbit(rate):g}"


def print_tokens(a, tokens, found):
    """The rows of one number of tokens; returns the figure's points: ratio and milliseconds by cut."""
    planned, points = best_by_plan(a, tokens), []
    for rate in a.rates.split(","):
        lines = {cut: found[rate, tokens, cut] for cut in CUTS}
        ms = {cut: step_ms(line) for cut, line in lines.items()}
        any_line = next(iter(lines.values()))
        ratio = any_line["inner_gbit"] / any_line["outer_gbit"]
        fastest = min(ms, key=ms.get)
        print_row([f"{tokens:,}", rate_text(rate), f"{any_line['inner_gbit']:.2f}", f"{any_line['outer_gbit']:.2f}",
                   f"{ratio:.1f}", *(f"{ms[cut]:.3g}" for cut in CUTS), CUTS[fastest], CUTS[planned],
                   "yes" if fastest == planned else f"no, {ms[planned] / ms[fastest]:.2f}x its time"])
        points.append((ratio, ms))
    return points, planned


def main():
    a = arguments()
    cases = {rate: (HOSTS, RANKS_PER_HOST, rate, ["--cuts", ",".join(CUTS), "--tokens", a.tokens, "--turns",
                                                  str(a.turns), *shape_flags(a)]) for rate in a.rates.split(",")}
    print(f"{machine()}; {a.heads} heads of {a.head_dim}, {a.key_heads} key heads; median of {a.repeats} runs\n")
    found = take_turns(a, cases, a.repeats)
    print_head(["tokens a rank", "link, Gbit/s", "a rank within, Gbit/s", "between, Gbit/s", "ratio",
                *(f"{name}, ms" for name in CUTS.values()), "fastest", "best by plan", "the same"])
    panels = {tokens: print_tokens(a, tokens, found) for tokens in map(int, a.tokens.split(","))}
    if a.figure:
        with open(a.figure, "w") as stream:
            stream.write(draw(machine(), panels, CUTS))


if __name__ == "__main__":
    main()
