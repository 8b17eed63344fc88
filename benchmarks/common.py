"""Helpers that all benchmarks share: the machine's name, arguments, runs in turns, tables, and starting of programs."""
import argparse
import concurrent.futures
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
PEERS = os.path.join(ROOT, "benchmarks", "peers")
HOSTS = os.path.join(ROOT, "benchmarks", "hosts", "hosts.py")
SIZES = {
    "tiny": dict(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                 num_key_value_heads=4, vocab_size=512),
    "jargon": dict(hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6,
                   num_key_value_heads=2, vocab_size=6000, tie_word_embeddings="true"),  # examples/jargon.toml
    "50m": dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=12, num_attention_heads=8,
                num_key_value_heads=4, vocab_size=16000),
}
STEPS_ONLY = {"data.validation": 0, "validation.freq": 0, "checkpoint.interval": 0, "lr_scheduler.warmup_steps": 0,
              "metrics.enable_tensorboard": "false", "metrics.sample_tokens": 0}


def machine():
    with open("/proc/cpuinfo") as stream:
        cpu = next((line.split(":")[1].strip() for line in stream if line.startswith("model name")), "unknown")
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores"


def by_rank(plan, value):
    """Returns value(class) for each rank of a plan that `orthant plan --json` printed: see docs/plan-json.md."""
    values = [None] * plan["ranks"]
    for ranks in plan["classes"]:
        for part in ranks["ranks"].split(", "):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                values[rank] = value(ranks)
    return values


def largest_memory_bytes(plan):
    return max(ranks["memory_bytes"]["total"] for ranks in plan["classes"])


def print_row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def print_head(cells):
    print_row(cells)
    print("|" + "---|" * len(cells), flush=True)


def names_of(known):
    """Returns an argparse type for a list of names with commas, all of which must be in `known`."""
    def parse(text):
        if unknown := set(text.split(",")) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; the known names are {', '.join(known)}")
        return text.split(",")
    return parse


def add_orthant_argument(p):
    p.add_argument("--orthant", default=os.path.join(ROOT, "build", "orthant"), help="path of the orthant program")


def add_json_argument(p):
    p.add_argument("--json", help="file that stores each run when it ends; a stored run is not repeated")


def own_python():
    own = os.path.join(ROOT, ".venv", "bin", "python3")
    return own if os.path.exists(own) else "python3"


class Runs:
    """All measured runs by case, or by group of cases and case. They are stored in the file of --json."""

    def __init__(self, path):
        self.path, self.found = path, {}
        if path and os.path.exists(path):
            with open(path) as stream:
                self.found = json.load(stream)["runs"]

    def take_turns(self, repeats, cases, run, group=None, at_once=1):
        """Runs every case once, then every case again, and so on, so that other load on the machine affects all cases.

        run(case, previous runs of the case) makes one run and returns its figures as a dictionary, or some runs, as a
        list. An empty list ends the case. Up to `at_once` cases run at the same time, in threads. Returns case -> runs,
        including those that the file had already."""
        found = self.found if group is None else self.found.setdefault(group, {})
        for case in cases:
            found.setdefault(case, [])
        lock, running, ended = threading.Lock(), set(), set()

        def due():
            return [case for case in dict.fromkeys(cases) if len(found[case]) < repeats and case not in ended]

        def take_turn():
            with lock:
                free = [case for case in due() if case not in running]
                if not free:
                    return False
                case = min(free, key=lambda case: len(found[case]))
                running.add(case)
            try:
                new = run(case, found[case])
            except BaseException:
                ended.update(cases)  # the other threads end after their run
                raise
            with lock:
                running.remove(case)
                if new == []:
                    ended.add(case)
                for figures in new if isinstance(new, list) else [new]:
                    found[case].append(figures)
                    texts = (f"{k} {v:,.4g}" for k, v in figures.items() if isinstance(v, float))
                    print(f"  {len(found[case])}/{repeats} {group or ''} {case}: {', '.join(texts)}", file=sys.stderr,
                          flush=True)
                self.save()
            return True

        def work():
            while due():
                if not take_turn():
                    time.sleep(0.1)  # every case that is due is running

        if at_once == 1:
            work()
            return found
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            try:
                for worker in [pool.submit(work) for _ in range(at_once)]:
                    worker.result()
            except BaseException:
                ended.update(cases)
                raise
        return found

    def save(self):
        """Replaces the file in one step, so that a program that is killed meanwhile loses no run."""
        if self.path:
            with open(self.path + ".new", "w") as stream:
                json.dump({"machine": machine(), "runs": self.found}, stream, indent=1)
            os.replace(self.path + ".new", self.path)


def median_of(runs):
    """Returns the median of each field over the runs in which it is a number. A field without numbers has the value of
    the first run."""
    def middle(values):
        numbers = [value for value in values if isinstance(value, (int, float))]
        return statistics.median(numbers) if numbers else values[0]
    return {field: middle([run[field] for run in runs]) for field in runs[0]}


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stderr[-3000:]}{done.stdout[-1000:]}")
    return done.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def read_json_lines(path, field="step_seconds"):
    """The objects in a metrics file that have the field."""
    with open(path) as stream:
        return [line for line in json_lines(stream.read()) if field in line]


def orthant_command(orthant, name, keys, folder):
    """Returns a command of Orthant with an empty run file, which it writes to the folder, and all keys as arguments."""
    empty = os.path.join(folder, "empty.toml")
    with open(empty, "w"):
        pass
    return [orthant, name, empty, *(f"{k}={v}" for k, v in keys.items())]


def on_hosts(hosts, ranks_per_host, rate, command, report=None):
    """Runs the command on emulated hosts and returns the output of all ranks. Exits if hosts cannot be emulated here,
    or if a rank fails."""
    options = ["--hosts", str(hosts), "--ranks-per-host", str(ranks_per_host), "--rate", rate]
    command = [sys.executable, HOSTS, *options, *(["--report", report] if report else []), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.stderr.write(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        sys.exit(done.returncode)  # 77: hosts cannot be emulated here, and hosts.py has printed the reason
    return done.stdout


def write_corpus(a, folder):
    """Writes 2 MB of random words to the folder and tokenizes them, so that no program's first step includes that.
    Returns the prefix of the dataset."""
    generator = random.Random(1)
    words = ["".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 9))) for _ in range(2000)]
    text, prefix = os.path.join(folder, "words.txt"), os.path.join(folder, "words")
    if os.path.exists(text):
        return prefix
    with open(text, "w") as stream:
        stream.writelines(" ".join(generator.choices(words, k=12)) + "\n" for _ in range(26000))
    subprocess.run([a.orthant, "tokenize", text, "--output", prefix, "--tokenizer", "byte"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return prefix


def relative(have, want):
    error = abs(have - want) / abs(want)
    return math.inf if math.isnan(error) else error


def loss_bounds(steps, parameters, first, of_gradient, max_norm):
    """Returns, for each step of one device's run, the bound of another layout's relative loss error. It is the bound of
    the first forward plus the effect of the weights' drift, where gradients have a relative error of of_gradient
    (docs/derivations.md, "Whole runs")."""
    drift, bounds = 0.0, []
    for step in steps:
        bounds.append(first + drift / step["loss"])
        drift += 2 * step["lr"] * math.sqrt(parameters) * of_gradient * min(max_norm, step["grad_norm"])
    return bounds
