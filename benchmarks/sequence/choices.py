#!/usr/bin/env python3
"""Measures which layout ulysses x ring is fastest for each ratio of inner to outer link rate, and compares it with the
choice of `orthant plan`.

It measures one layer's attention, forward and backward, on 2 emulated hosts of 2 ranks each (benchmarks/hosts), for one
sequence in float32. There are three layouts of four ranks: Ulysses over all ranks, Ulysses within a host and the ring
between hosts, and the ring over all ranks. The ratio is measured, too: the rate at which a rank sends to its neighbour
on the host, over the rate to the other host, while all ranks send. The plans of the same layer give two choices: the
layout that sends the fewest bytes, and the fastest one on a machine with these rates and the measured FLOPs per second
of the ring's blocks.

  python3 benchmarks/sequence/choices.py [--quick] [--rates 100mbit,none] [--tokens 512] [--figure docs/images/usp.svg]

Requires root, as benchmarks/hosts does. Results are medians of the runs; all rates take turns.
"""
import argparse
import json
import os
import sys
import tempfile
import tomllib

from choices_figure import draw
from emulated import add_arguments, gbit, shape_flags, take_turns

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import ROOT, machine, orthant_command, output_of, print_head, print_row

HOSTS = RANKS_PER_HOST = 2
CUTS = {"4x1": "ulysses 4", "2x2": "ulysses 2 x ring 2", "1x4": "ring 4"}  # layout -> its name in the plan


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    p.add_argument("--rates", default="300mbit,3gbit" if quick else "100mbit,300mbit,1gbit,3gbit,10gbit,none")
    p.add_argument("--tokens", default="256" if quick else "512,2048", help="numbers of tokens per rank")
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--key-heads", type=int, default=2)
    p.add_argument("--head-dim", type=int, default=64)
    p.add_argument("--turns", type=int, default=3, help="number of measurements of each layout per run")
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="number of runs for each rate")
    p.add_argument("--figure", help="file for the figure of the times (SVG)")
    add_arguments(p)
    return p.parse_args()


def measured_machine(line):
    """Returns a hardware file with the measured rates of links and attention, and without latencies."""
    with open(os.path.join(ROOT, "src/hardware/profiles/this-cpu.toml"), "rb") as stream:
        machine_file = tomllib.load(stream)
    flops = 3.5e3 * line["forward_flops"] / (line["forward_compute_ms"] + line["backward_compute_ms"])
    # The rates were measured while the cores computed, and the attention of the ring hides its messages.
    machine_file["device"] |= {"per_host": RANKS_PER_HOST, "communication_uses_compute": False}
    machine_file["peak_flop_per_s"]["float32"] = flops
    machine_file["attention"]["latency_seconds"] = 0
    for attention in ("forward", "backward"):
        machine_file["attention"][attention] |= {"share": 1, "tail": 0}
    for links, gbit_per_s in (("same_host", line["inner_gbit"]), ("between_hosts", line["outer_gbit"])):
        machine_file[links] |= {"bytes_per_s": gbit_per_s * 1e9 / 8}
        machine_file[links]["message"] |= {"share": 1, "latency_seconds": 0}
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            machine_file[links][name] = [entry | {"share": 1, "latency_seconds": 0, "step_seconds": 0}
                                         for entry in machine_file[links][name]]
    return machine_file


def toml(table, prefix=""):
    """Writes nested tables as TOML."""
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lists = {key: values.pop(key) for key in list(values) if isinstance(values[key], list) and
             values[key] and isinstance(values[key][0], dict)}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    for key, entries in lists.items():
        text += "".join(f"[[{prefix}{key}]]\n" + toml(entry) for entry in entries)
    for key, value in table.items():
        if isinstance(value, dict):
            text += f"[{prefix}{key}]\n" + toml(value, f"{prefix}{key}.")
    return text


def planned(a, tokens, line):
    """Returns the figures of one layer's attention by the plans for the rates of the measured line, as layout ->
    (bytes, milliseconds). Milliseconds are attention and the messages that it does not hide."""
    ranks = HOSTS * RANKS_PER_HOST
    keys = {"run.ranks": ranks, "model.hidden_size": a.heads * a.head_dim, "model.num_attention_heads": a.heads,
            "model.num_key_value_heads": a.key_heads, "model.max_position_embeddings": ranks * tokens,
            "model.num_hidden_layers": 1, "training.seq_len": ranks * tokens, "training.global_batch_size": 1,
            "training.local_batch_size": 1, "data.tokenizer": "byte", "data.path": os.path.join(ROOT, "README.md")}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        machine_path = os.path.join(folder, "machine.toml")
        with open(machine_path, "w") as stream:
            stream.write(toml(measured_machine(line)))
        for cut in CUTS:
            ulysses, ring = map(int, cut.split("x"))
            cut_keys = keys | {"parallelism.context_parallel_ulysses": ulysses,
                               "parallelism.context_parallel_ring": ring}
            plan = json.loads(output_of([*orthant_command(os.path.join(a.build, "orthant"), "plan", cut_keys, folder),
                                         "--json", "--show", "communication", "--hardware", machine_path]))
            parts = plan["step_parts_seconds"]
            seconds = parts["attention"] + sum(parts["communication"].get(axis, 0) for axis in ("ulysses", "ring"))
            sent = sum(max(entry["bytes_per_step"]) for entry in plan["communication"]
                       if entry["axis"] in ("ulysses", "ring"))
            found[cut] = (sent, 1000 * seconds)
    return found


def step_ms(line):
    return line["forward_ms"] + line["backward_ms"]


def rate_text(rate):
    return "no limit" if rate == "none" else f"{gbit(rate):g}"


def print_tokens(a, tokens, found):
    """Prints the rows of one number of tokens. Returns the points of the figure: (ratio, milliseconds by layout, the
    plan's layout)."""
    points = []
    for rate in a.rates.split(","):
        ms = {cut: step_ms(found[rate, tokens, cut]) for cut in CUTS}
        line = found[rate, tokens, "1x4"]  # only the ring's line has the time of its blocks alone
        ratio = line["inner_gbit"] / line["outer_gbit"]
        by_plan = planned(a, tokens, line)
        fastest = min(ms, key=ms.get)
        named = [min(CUTS, key=lambda cut: by_plan[cut][column]) for column in (0, 1)]
        print_row([f"{tokens:,}", rate_text(rate), f"{line['inner_gbit']:.2f}", f"{line['outer_gbit']:.2f}",
                   f"{ratio:.1f}", *(f"{ms[cut]:.3g} ({by_plan[cut][1]:.3g})" for cut in CUTS), CUTS[fastest],
                   *(CUTS[cut] + ("" if cut == fastest else f": {ms[cut] / ms[fastest]:.2f}x") for cut in named)])
        points.append((ratio, ms, named[1]))
    return points


def main():
    a = arguments()
    cases = {rate: (HOSTS, RANKS_PER_HOST, rate, ["--cuts", ",".join(CUTS), "--tokens", a.tokens, "--turns",
                                                  str(a.turns), *shape_flags(a)]) for rate in a.rates.split(",")}
    print(f"{machine()}; {a.heads} heads of {a.head_dim}, {a.key_heads} key heads; median of {a.repeats} runs\n")
    found = take_turns(a, cases, a.repeats)
    print_head(["tokens a rank", "link, Gbit/s", "a rank within, Gbit/s", "between, Gbit/s", "ratio",
                *(f"{name}, ms (by plan)" for name in CUTS.values()), "fastest", "sends least, by plan",
                "fastest, by plan"])
    panels = {tokens: print_tokens(a, tokens, found) for tokens in map(int, a.tokens.split(","))}
    if a.figure:
        with open(a.figure, "w") as stream:
            stream.write(draw(machine(), panels, CUTS))


if __name__ == "__main__":
    main()
