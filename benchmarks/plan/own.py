#!/usr/bin/env python3
"""Compares `orthant plan` with steps that really ran on this machine: layouts of 2 to 8 ranks on one host and on two
emulated hosts, and the choices of `orthant plan --search`. docs/plan-errors.md has its output.

  build/orthant calibrate --write machine.toml
  python3 benchmarks/plan/own.py --hardware machine.toml [--json FILE] [--only layouts|hosts|searches] [--turns 1]

"median" is that of a run's steps without the first two, then over the turns; all cases run once in each turn.
"quartile" is the lower quartile of all these steps, and "shortest" the shortest: on a machine that other programs use,
medians say more about those programs. With several turns, the last line counts the cases whose own runs differ. A
search runs its five best layouts; "lost" says how much longer the step of its first choice takes than the shortest of
the five. Other programs should not use the machine meanwhile. The emulated hosts require root (benchmarks/hosts); they
share the cores of this machine, and the profile gets half of the cores for each of them and the rate of their link.
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
from common import (STEPS_ONLY, Runs, add_json_argument, add_orthant_argument, machine, median_of, on_hosts,
                    orthant_command, output_of, print_head, print_row, read_json_lines, write_corpus)

STEPS, WARM_UP = 8, 2
RATE, RATE_BYTES = "1gbit", 125e6
MODEL = {"model.hidden_size": 256, "model.intermediate_size": 704, "model.num_hidden_layers": 8,
         "model.num_attention_heads": 8, "model.num_key_value_heads": 8, "model.vocab_size": 2048,
         "model.max_position_embeddings": 1024, "training.seq_len": 128, "training.global_batch_size": 8,
         "training.local_batch_size": 1}
SHORT = {"zero": "zero_stage", "reshard": "zero_reshard", "tensor": "tensor_parallel_degree",
         "kind": "tensor_parallel_kind", "mesh": "tensor_parallel_mesh", "product": "tensor_parallel_product",
         "ulysses": "context_parallel_ulysses", "ring": "context_parallel_ring",
         "pipeline": "pipeline_parallel_degree", "data": "data_parallel_degree", "schedule": "pipeline_parallel_schedule",
         "vocabulary": "vocabulary_parallel", "outer": "outer_axis"}
# Ranks, and settings of [parallelism] by the short names above or by their full keys.
LAYOUTS = [
    (2, ""), (2, "local=4"), (2, "zero=1"), (2, "zero=2"), (2, "zero=3"), (2, "zero=3 reshard=microbatch"),
    (2, "tensor=2"), (2, "ulysses=2"), (2, "ring=2"), (2, "ulysses=2 zero=3"), (2, "tensor=2 local=4"),
    (2, "pipeline=2"), (2, "pipeline=2 schedule=gpipe"), (2, "pipeline=2 schedule=interleaved_1f1b"),
    (2, "pipeline=2 schedule=zb_h1"), (2, "pipeline=2 schedule=zb_v"), (2, "pipeline=2 local=2"),
    (2, "pipeline=2 vocabulary=algorithm_2"), (2, "pipeline=2 vocabulary=redistribution"),
    (2, "recompute=full"), (2, "recompute=full pipeline=2"), (2, "dtype=bfloat16"), (2, "dtype=bfloat16 zero=3"),
    (2, "dtype=bfloat16 pipeline=2"), (2, "dtype=bfloat16 tensor=2"), (2, "seq=512 batch=2 ring=2"),
    (2, "seq=512 batch=2 ulysses=2"), (2, "seq=512 batch=2"), (4, ""), (4, "zero=1"), (4, "zero=3"), (4, "tensor=2"),
    (4, "tensor=4"), (4, "kind=2d mesh=2,2,1"), (4, "pipeline=4"), (4, "pipeline=4 vocabulary=algorithm_1"),
    (4, "pipeline=2 tensor=2"), (4, "pipeline=2 zero=1"), (4, "ulysses=2 tensor=2"), (4, "ulysses=2 ring=2"),
    (4, "ring=2 zero=1"), (4, "pipeline=4 schedule=zb_h1"), (8, ""), (8, "zero=3"), (8, "tensor=2"),
    (8, "kind=2.5d mesh=2,2,2"), (8, "pipeline=4"), (8, "pipeline=2 tensor=2 zero=1")]
ON_HOSTS = [(2, ""), (2, "zero=1"), (2, "pipeline=2"), (2, "ulysses=2"), (4, ""), (4, "tensor=2"), (4, "pipeline=2"),
            (4, "pipeline=2 outer=data"), (4, "pipeline=2 tensor=2"), (4, "zero=3")]
SEARCHES = [(2, ""), (2, "seq=512 batch=2"), (2, "batch=16"), (2, "dtype=bfloat16"), (2, "vocab=8192"), (2, "layers=4"),
            (4, ""), (4, "seq=512 batch=2"), (4, "hidden=128"), (4, "batch=16")]
FULL = {"local": "training.local_batch_size", "seq": "training.seq_len", "batch": "training.global_batch_size",
        "dtype": "training.dtype", "recompute": "activation_checkpoint.mode", "vocab": "model.vocab_size",
        "layers": "model.num_hidden_layers", "hidden": "model.hidden_size"}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_orthant_argument(p)
    add_json_argument(p)
    p.add_argument("--hardware", required=True, help="profile that orthant calibrate has written on this machine")
    p.add_argument("--only", choices=["layouts", "hosts", "searches"], help="default: all three")
    p.add_argument("--turns", type=int, default=1, help="number of runs of each case")
    p.add_argument("--filter", default="", help="run only the cases whose names contain this text")
    return p.parse_args()


def keys_of(settings):
    pairs = [setting.split("=", 1) for setting in settings.split()]
    return {FULL.get(name) or f"parallelism.{SHORT[name]}": value for name, value in pairs}


def name_of(ranks, settings):
    return f"{ranks} ranks {settings}".strip()


def on_two_hosts(profile, ranks):
    """Returns the text of the profile for half of the ranks on each of two hosts that share this machine."""
    cores = int(re.search(r"^shared_cores = (\d+)$", profile, re.M)[1])
    values = {"per_host": ranks // 2, "shared_cores": max(1, cores // 2)}
    for key, value in values.items():
        profile = re.sub(rf"^{key} = \d+$", f"{key} = {value}", profile, flags=re.M)
    head, link = profile.split("[between_hosts]")
    link, tail = link.split("[process_memory]")
    link = re.sub(r"^bytes_per_s = .*$", f"bytes_per_s = {RATE_BYTES / (ranks // 2)}", link, flags=re.M)
    link = re.sub(r"^share = .*$", "share = 0.95", link, flags=re.M)
    link = re.sub(r"^origin = .*$", 'origin = "assumed: rate of the emulated link"', link, flags=re.M)
    return head + "[between_hosts]" + link + "[process_memory]" + tail


class Machine:
    def __init__(self, a, folder):
        self.a, self.folder = a, folder
        with open(a.hardware) as stream:
            self.profile = stream.read()
        self.base = {**STEPS_ONLY, **MODEL, "data.path": write_corpus(a, folder), "training.steps": STEPS,
                     "run.timeout_s": 60, "job.dump_folder": os.path.join(folder, "run")}

    def command(self, name, ranks, keys):
        return orthant_command(self.a.orthant, name, {**self.base, "run.ranks": ranks, **keys}, self.folder)

    def plan(self, ranks, keys, hosts=1):
        path = os.path.join(self.folder, "profile.toml")
        with open(path, "w") as stream:
            stream.write(on_two_hosts(self.profile, ranks) if hosts == 2 else self.profile)
        return json.loads(output_of(self.command("plan", ranks, keys) + ["--json", "--hardware", path]))

    def search(self, ranks, keys):
        text = output_of(self.command("plan", ranks, keys) + ["--json", "--search", "--hardware", self.a.hardware])
        return json.loads(text)["search"][:5]

    def run(self, ranks, keys, hosts=1):
        """Returns the seconds of the median step."""
        shutil.rmtree(self.base["job.dump_folder"], ignore_errors=True)
        if hosts == 1:
            output_of(self.command("train", ranks, keys))
        else:  # an emulated host sees all cores of the machine
            on_hosts(hosts, ranks // hosts, RATE, self.command("train", ranks, {**keys, "run.threads_per_rank": 1}))
        lines = read_json_lines(os.path.join(self.base["job.dump_folder"], "metrics.jsonl"))
        seconds = [line["step_seconds"] for line in lines[WARM_UP:]]
        return {"step_s": statistics.median(seconds), "wait_s": lines[-1]["communication_seconds"], "all": seconds}


def percent(planned, measured):
    return f"{100 * (planned / measured - 1):+.1f} %"


def compare(machine_, runs, group, cases, hosts):
    by_name = {name_of(*case): case for case in cases if machine_.a.filter in name_of(*case)}
    found = runs.take_turns(machine_.a.turns, by_name,
                            lambda name, _: machine_.run(by_name[name][0], keys_of(by_name[name][1]), hosts), group)
    print_head(["case", "planned, s", "median, s", "error", "quartile, s", "error", "shortest, s", "error"])
    errors = {"median": [], "quartile": [], "shortest": []}
    for name, (ranks, settings) in by_name.items():
        planned = machine_.plan(ranks, keys_of(settings), hosts)["step_seconds"]
        steps = sorted(step for run in found[name] for step in run["all"])
        measured = {"median": median_of(found[name])["step_s"], "quartile": steps[len(steps) // 4],
                    "shortest": steps[0]}
        cells = [name, f"{planned:.3f}"]
        for kind, seconds in measured.items():
            errors[kind].append(abs(planned / seconds - 1))
            cells += [f"{seconds:.3f}", percent(planned, seconds)]
        print_row(cells)
    for kind, found_errors in errors.items():
        within = sum(error <= 0.10 for error in found_errors)
        print(f"\n{kind} step: {within} of {len(found_errors)} within 10 %; median error "
              f"{100 * statistics.median(found_errors):.1f} %")
    if machine_.a.turns > 1:
        medians = [[run["step_s"] for run in found[name]] for name in by_name]
        ratios = [max(steps) / min(steps) for steps in medians]
        differ = sum(ratio > 1.1 for ratio in ratios)
        print(f"\nmedian steps of the same case: {differ} of {len(ratios)} differ by more than 10 %; ratio in the median: "
              f"{statistics.median(ratios):.2f}, at worst: {max(ratios):.2f}")
    print()


def compare_searches(machine_, runs):
    print_head(["search", "choice", "planned, s", "step, s", "shortest of five, s", "lost"])
    good, total = 0, 0
    for ranks, settings in SEARCHES:
        name = name_of(ranks, settings)
        if machine_.a.filter not in name:
            continue
        keys = keys_of(settings)
        best = machine_.search(ranks, keys)
        cases = {describe(layout["settings"]): layout for layout in best}
        found = runs.take_turns(machine_.a.turns, cases,
                                lambda case, _: machine_.run(ranks, {**keys, **as_keys(cases[case]["settings"])}), name)
        seconds = {case: median_of(found[case])["step_s"] for case in cases}
        first = describe(best[0]["settings"])
        lost = seconds[first] / min(seconds.values()) - 1
        good, total = good + (lost <= 0.05), total + 1
        print_row([name, first, f"{best[0]['step_seconds']:.3f}", f"{seconds[first]:.3f}",
                   f"{min(seconds.values()):.3f}", f"{100 * lost:.1f} %"])
    print(f"\n{good} of {total} choices within 5 % of the shortest of five\n")


def as_keys(settings):
    """The settings of a search as words of the command line: lists and texts without TOML's quotes."""
    words = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()}
    return {key: re.sub(r'["\[\] ]', "", value) for key, value in words.items()}


def describe(settings):
    """The settings that differ from the defaults, by their short names."""
    defaults = {"layout": "given", "tensor_parallel_kind": "1d", "tensor_parallel_mesh": "1,1,1", "zero_reshard": "step",
                "tensor_parallel_sequence": "true", "pipeline_parallel_schedule": "1f1b"}
    short = {key: name for name, key in SHORT.items()}
    words = {key.split(".")[1]: str(value) for key, value in as_keys(settings).items()}
    return " ".join(f"{short.get(key, key)}={value}" for key, value in words.items()
                    if value not in ("1", "0", '"none"', "none", "[]", "", defaults.get(key)))


def main():
    a = arguments()
    runs = Runs(a.json)
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        own = Machine(a, folder)
        if a.only in (None, "layouts"):
            compare(own, runs, "one host", LAYOUTS, 1)
        if a.only in (None, "hosts"):
            compare(own, runs, "two hosts", ON_HOSTS, 2)
        if a.only in (None, "searches"):
            compare_searches(own, runs)


if __name__ == "__main__":
    main()
