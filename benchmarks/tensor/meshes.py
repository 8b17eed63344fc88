#!/usr/bin/env python3
"""Compares tensor parallelism in 1, 2 and 2.5 dimensions over 64 ranks on 16 emulated hosts of four ranks each.

Every arrangement has the same model and the same tokens per step. The first is 1-D over all ranks: Megatron's, with
unsharded activations between its products. Then come [8, 8, 1] and [4, 4, 4] (rows, columns, depth), each with the
papers' product (summa) and with ours (stationary). The last is the choice of `orthant plan` for these hosts: it gets
the profile this-cpu with the links that `orthant calibrate` has measured between them. The measured program is `orthant train` on the
hosts of benchmarks/hosts, in float32 with one thread per rank.

"step": the median over a run's steps without the first, then over the turns; all arrangements run once in each turn.
"sent by a rank": the planned bytes; if they differ from the bytes that the run counts, there is no table. "on a host's
link": the bytes that the network interfaces count per step, mean over the hosts. They are the difference of turns with
different numbers of steps, so that those of the start are excluded. All 64 ranks compute and copy on the cores of this
machine, which limits how short a step can be.

  python3 benchmarks/tensor/meshes.py [--quick] [--rate 200mbit] [--turns 2] [--json FILE]

Requires root, as benchmarks/hosts does. Each arrangement takes about one minute per turn, and 1-D two minutes, because
64 processes start on two cores. Each run is reported when it ends, and stored in the file of --json.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (ROOT, STEPS_ONLY, Runs, add_json_argument, add_orthant_argument, by_rank, largest_memory_bytes,
                    machine, names_of, on_hosts, orthant_command, output_of, print_head, print_row, read_json_lines,
                    write_corpus)

HOSTS, RANKS_PER_HOST = 16, 4
RANKS = HOSTS * RANKS_PER_HOST
PUBLISHED = 1.45  # speed of [4, 4, 4] over that of [8, 8, 1] in the abstract of the Tesseract paper


def mesh(sizes, product):
    return {"tensor_parallel_kind": "2.5d" if sizes[2] > 1 else "2d", "tensor_parallel_product": product,
            "tensor_parallel_mesh": ",".join(map(str, sizes))}


ARRANGEMENTS = {
    "1d": {"tensor_parallel_kind": "1d", "tensor_parallel_degree": RANKS, "tensor_parallel_sequence": "false"},
    "881-summa": mesh((8, 8, 1), "summa"), "444-summa": mesh((4, 4, 4), "summa"),
    "881": mesh((8, 8, 1), "stationary"), "444": mesh((4, 4, 4), "stationary"),
    "auto": {"tensor_parallel_kind": "auto", "tensor_parallel_degree": RANKS},
}


def rate(text):
    if not re.fullmatch(r"[1-9]\d*[kmg]bit", text):
        raise argparse.ArgumentTypeError(f"{text} is not like 200mbit")
    return text


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_orthant_argument(p)
    add_json_argument(p)
    p.add_argument("--arrangements", type=names_of(ARRANGEMENTS),
                   default="881,444" if quick else ",".join(ARRANGEMENTS))
    p.add_argument("--rate", type=rate, default="200mbit", help="rate of the link of each host, in both directions")
    p.add_argument("--hardware", help="profile of these hosts, instead of measuring their links")
    p.add_argument("--turns", type=int, default=1 if quick else 2,
                   help="number of runs of each arrangement; each run has one step more than the previous one")
    p.add_argument("--steps", type=int, default=3,
                   help="number of steps of the first run, at least 3; 1-D runs one less")
    p.add_argument("--hidden-size", type=int, default=256)
    p.add_argument("--layers", type=int, default=1 if quick else 2)
    p.add_argument("--sequences", type=int, default=64, help="number of sequences per step")
    p.add_argument("--seq-len", type=int, default=64 if quick else 96)
    p.add_argument("--quick", action="store_true", help="smoke test with two arrangements and few small steps")
    a = p.parse_args()
    if a.steps < 3:
        p.error("--steps must be at least 3")
    return a


class Arrangement:
    """A way to run the step: its keys, its planned mesh, bytes and memory, and its measured runs."""

    def __init__(self, a, keys, folder):
        self.a, self.keys, self.folder, self.runs = a, keys, folder, []
        plan = json.loads(output_of(self.command("plan") + ["--json"]))
        sizes = {axis["axis"]: axis["size"] for axis in plan["mesh"]}
        self.mesh = tuple(sizes.get(axis, 1) for axis in ("row", "column", "depth"))
        self.sent = by_rank(plan, lambda ranks: ranks["communication_bytes"])
        self.memory = largest_memory_bytes(plan)

    def command(self, name, **more):
        return orthant_command(self.a.orthant, name, {**self.keys, **more}, self.folder)

    def run(self, steps):
        dump, report = (os.path.join(self.folder, name) for name in ("run", "report.json"))
        shutil.rmtree(dump, ignore_errors=True)
        on_hosts(HOSTS, RANKS_PER_HOST, self.a.rate, self.command("train", **{"training.steps": steps}), report)
        lines = read_json_lines(os.path.join(dump, "metrics.jsonl"))
        if wrong := [line["communication_bytes"] for line in lines if line["communication_bytes"] != self.sent[0]]:
            sys.exit(f"{self.keys}: rank 0 sends {self.sent[0]:,} bytes a step by plan, {wrong[0]:,} by count")
        with open(report) as stream:
            links = [host["sent_bytes"] for host in json.load(stream)["hosts"]]
        seconds = [line["step_seconds"] for line in lines[1:]]
        return {"step_s": statistics.median(seconds), "steps": steps, "seconds": seconds,
                "waits": [line["communication_seconds"] for line in lines[1:]],
                "peak_bytes": lines[-1]["peak_memory_bytes"], "link_bytes": statistics.mean(links)}

    def step_s(self):
        return statistics.median(run["step_s"] for run in self.runs)

    def waited(self):
        return statistics.median(wait / s for run in self.runs for wait, s in zip(run["waits"], run["seconds"]))

    def link_bytes(self):
        """Returns the bytes per step on a host's link. It requires at least two runs."""
        first, last = self.runs[0], self.runs[-1]
        return (last["link_bytes"] - first["link_bytes"]) / (last["steps"] - first["steps"])


def write_hardware(a, folder):
    """Measures the links between these hosts, for 5 minutes. Returns the path of the profile."""
    path = os.path.join(folder, "hosts.toml")
    on_hosts(HOSTS, RANKS_PER_HOST, a.rate,
             [a.orthant, "calibrate", "--hardware", "this-cpu", "--write", path, "--seconds", "240"])
    return path


def arrangements(a, corpus, folder):
    """Returns name -> Arrangement."""
    base = {**STEPS_ONLY, "run.ranks": RANKS, "run.threads_per_rank": 1, "run.timeout_s": 120, "data.path": corpus,
            "job.dump_folder": os.path.join(folder, "run"), "model.hidden_size": a.hidden_size,
            "model.intermediate_size": 11 * a.hidden_size // 4, "model.num_hidden_layers": a.layers,
            "model.num_attention_heads": RANKS, "model.num_key_value_heads": RANKS, "model.vocab_size": 512,
            "model.max_position_embeddings": a.seq_len, "training.seq_len": a.seq_len,
            "training.global_batch_size": a.sequences, "training.local_batch_size": a.sequences}
    if "auto" in a.arrangements:
        base["run.hardware"] = a.hardware or write_hardware(a, folder)
    return {name: Arrangement(a, {**base, **{f"parallelism.{key}": value for key, value in ARRANGEMENTS[name].items()}},
                              folder) for name in a.arrangements}


def title(name, arrangement):
    shape = "[{}, {}, {}]".format(*arrangement.mesh)
    if name == "1d":
        return f"1-D, {shape}", "stationary"
    if name == "auto":
        shape = "the plan's choice, " + shape
    return shape, arrangement.keys.get("parallelism.tensor_parallel_product", "stationary")


def print_table(a, found):
    of_881 = found["881"].step_s() if "881" in found else None
    print_head(["arrangement", "product", "step, s", "exposed communication", "[8, 8, 1] stationary / this",
                "sent by a rank, MB", "on a host's link, MB", "state and activations of a rank, MiB"])
    for name, it in found.items():
        link = f"{it.link_bytes() / 1e6:.1f}" if len(it.runs) > 1 else "-"
        print_row([*title(name, it), f"{it.step_s():.2f}", f"{100 * it.waited():.0f} %",
                   f"{of_881 / it.step_s():.2f}x" if of_881 else "-", f"{statistics.mean(it.sent) / 1e6:.1f}", link,
                   f"{it.memory / 2**20:.1f}"])
    print()
    for product in ("-summa", ""):
        if {"881" + product, "444" + product} <= set(found):
            flat, deep = found["881" + product], found["444" + product]
            links = f"{flat.link_bytes() / deep.link_bytes():.2f}" if len(flat.runs) > 1 else "-"
            print(f"[8, 8, 1] over [4, 4, 4], {product[1:] or 'stationary'}: step {flat.step_s() / deep.step_s():.2f}, "
                  f"sent by a rank {statistics.mean(flat.sent) / statistics.mean(deep.sent):.2f}, on a host's link "
                  f"{links}; published {PUBLISHED}")


def main():
    a = arguments()
    print(f"{machine()}; {HOSTS} emulated hosts of {RANKS_PER_HOST} ranks, links of {a.rate}; {a.layers} layers, "
          f"hidden {a.hidden_size}, {RANKS} heads, {a.sequences} x {a.seq_len} tokens a step; {a.turns} turns\n",
          flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = arrangements(a, write_corpus(a, folder), folder)
        measured = Runs(a.json).take_turns(  # 1-D takes ten times as long
            a.turns, found, lambda name, runs: found[name].run(a.steps + len(runs) - (name == "1d")))
        for name, arrangement in found.items():
            arrangement.runs = measured[name]
    print_table(a, found)


if __name__ == "__main__":
    main()
