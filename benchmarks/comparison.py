"""Runs `orthant train` and a peer program of benchmarks/peers on the same training steps, as processes that take turns.
The benchmarks that compare whole steps with PyTorch share it."""
import glob
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from common import (PEERS, SIZES, STEPS_ONLY, add_json_argument, add_orthant_argument, json_lines, machine,
                    orthant_command, own_python, read_json_lines, write_corpus)

WARMUP = 5  # first steps of a run, which no median includes
LOSS_BOUND = 1e-5  # relative error for a few float32 steps with different orders of sums


class RunFailed(SystemExit):
    """A program ended with an error. If nothing catches this, the benchmark ends and prints the program's output."""

    def __init__(self, command, status, text):
        super().__init__(f"{' '.join(command)}\nfailed with {status}:\n{text[-3000:]}")
        self.status, self.text = status, text

    def reason(self):
        """Returns the message of the first Python exception in the output."""
        found = re.search(r"^(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Unsupported)\b.*)$", self.text, re.M)
        return found[1] if found else f"exit status {self.status}: {self.text[-200:].strip()}"


def add_program_arguments(p):
    """Adds the arguments about the two programs and their turns."""
    add_orthant_argument(p)
    add_json_argument(p)
    p.add_argument("--python", default=None, help="python3 that can import torch; default: the one of .venv")
    p.add_argument("--allocator", default="auto",
                   help="allocator that is preloaded into the peer: a library, auto (mimalloc) or none")
    p.add_argument("--no-compile", action="store_true", help="run the peer in eager mode only")
    p.add_argument("--repeats", type=int, default=1 if "--quick" in sys.argv else 3,
                   help="number of runs of each program per line")


def find_programs(a):
    a.compilers = ["none"] if a.no_compile or a.quick else ["none", "model"]  # values of the peer's --compile
    a.python = a.python or own_python()
    if a.allocator == "auto":
        found = sorted(glob.glob("/usr/lib/*/libmimalloc.so*") + glob.glob("/usr/lib/libmimalloc.so*"))
        a.allocator = found[0] if found else "none"


def print_setting(a, work):
    print(f"{machine()}; {a.repeats} runs each; {work}; peer's allocator: {os.path.basename(a.allocator)}\n",
          flush=True)


def speed_cells(runs, way):
    """Returns the cells with the median tokens/s of both programs, their ratio, and the smallest and largest ratio of a
    turn."""
    ours, peer = (statistics.median(run[who] for run in runs) for who in ("ours", "peer"))
    ratios = [run["ours"] / run["peer"] for run in runs]
    return [f"{ours:,.0f}", f"{peer:,.0f} ({way})", f"{ours / peer:.2f}x", f"{min(ratios):.2f}, {max(ratios):.2f}"]


def peak_resident_bytes(root):
    """Returns the largest resident set, in bytes, that any process of this process tree has had so far: that of a rank
    of either program."""
    parents, peaks = {}, {}
    for status in glob.glob("/proc/[0-9]*/status"):
        try:
            with open(status) as stream:
                fields = dict(line.split(":", 1) for line in stream if line.startswith(("PPid", "VmHWM")))
        except OSError:
            continue
        pid = int(status.split("/")[2])
        parents[pid] = int(fields["PPid"])
        peaks[pid] = 1024 * int(fields.get("VmHWM", "0 kB").split()[0])
    below, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        below |= more
        grown = bool(more)
    return max(peaks.get(pid, 0) for pid in below)


def check_losses(losses, others, what, bound=LOSS_BOUND):
    for mine, other in zip(losses, others):
        if not math.isclose(mine, other, rel_tol=bound):
            sys.exit(f"{what} computes another model: its loss is {mine}, but another program has {other}")


class Run(NamedTuple):
    """A run of a training program."""
    lines: list          # metrics of the measured steps, one line per step
    tokens: int          # per step
    first_s: float       # seconds from the command to the first line of metrics
    resident_bytes: int  # peak of the largest process
    text: str            # the output

    def step_s(self):
        return statistics.median(line["step_seconds"] for line in self.lines)

    def tokens_per_second(self):
        return self.tokens / self.step_s()

    def waiting(self):
        """The fraction of a step in which our rank 0 waits for messages."""
        return statistics.median(line["communication_seconds"] / line["step_seconds"] for line in self.lines)

    def summary(self):
        """The object that a peer prints when it ends."""
        return json_lines(self.text)[-1]


class Programs:
    """`orthant train` and a program of peers/ with the same work: a model, and the tokens and sequences of a step.

    The names in `work` are the options of the peer. With the prefix "model." or "training." they are our keys. All runs
    of the peer that print losses must print the same ones."""

    def __init__(self, a, peer, work, folder, warmup=WARMUP, loss_bound=LOSS_BOUND):
        self.a, self.program, self.work, self.folder, self.warmup = a, os.path.join(PEERS, peer), work, folder, warmup
        self.loss_bound = loss_bound
        self.corpus, self.dump = write_corpus(a, folder), os.path.join(folder, "run")
        self.losses, self.tried = None, {}

    def watch(self, command, metrics, environment):
        """Runs a program that writes one JSON line per step to the file `metrics`, and returns its Run."""
        started, first, peak = time.monotonic(), None, 0
        with open(os.path.join(self.folder, "output"), "w+") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment})
            while process.poll() is None:
                if first is None and os.path.exists(metrics) and os.path.getsize(metrics):
                    first = time.monotonic() - started
                else:
                    peak = max(peak, peak_resident_bytes(process.pid))
                time.sleep(0.01 if first is None else 0.3)
            out.seek(0)
            text = out.read()
        if process.returncode:
            raise RunFailed(command, process.returncode, text)
        tokens = self.work["global_batch_size"] * self.work["seq_len"]
        return Run(read_json_lines(metrics)[self.warmup:], tokens, first, peak, text)

    def ours(self, ranks, steps, keys, threads=1):
        """Runs our program: `steps` measured steps, with these keys in addition to those of the work."""
        shutil.rmtree(self.dump, ignore_errors=True)
        work = {f"{'model' if k in SIZES['jargon'] else 'training'}.{k}": v for k, v in self.work.items()}
        keys = {**STEPS_ONLY, **work, "model.max_position_embeddings": self.work["seq_len"], "data.path": self.corpus,
                "training.steps": self.warmup + steps, "run.ranks": ranks, "run.threads_per_rank": threads,
                "job.dump_folder": self.dump, "optimizer.lr": 3e-4, **keys}
        return self.watch(orthant_command(self.a.orthant, "train", keys, self.folder),
                          os.path.join(self.dump, "metrics.jsonl"), {})

    def timeline(self):
        """Returns three times of our last step, in seconds: the measured time of its pipeline, the simulated one, and
        the sum over ranks of the time in which a rank computes."""
        with open(os.path.join(self.dump, "timeline.json")) as stream:
            trace = json.load(stream)
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        made_s = 1e-6 * (max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans))
        computed_s = 1e-6 * sum(e["dur"] for e in spans if e["cat"] == "compute")
        return made_s, trace["otherData"]["simulated_s"], computed_s

    def peer(self, ranks, steps, way):
        """Runs the peer: `steps` measured steps, with the options of `way` in addition to those of the work. It has one
        thread per rank unless `way` has the option `threads`. `allocator` in `way` replaces the one of --allocator."""
        metrics = os.path.join(self.folder, "peer.jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        options = {**self.work, "warmup_steps": self.warmup, "steps": self.warmup + steps, "threads": 1, **way,
                   "metrics": metrics}
        allocator = options.pop("allocator", self.a.allocator)
        command = [self.a.python, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
                   "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", self.program,
                   *(word for k, v in options.items() for word in (f"--{k}", str(v)))]
        environment = {"OMP_NUM_THREADS": str(options["threads"]), "PYTHONWARNINGS": "ignore"}
        if allocator != "none":
            environment["LD_PRELOAD"] = allocator
        run = self.watch(command, metrics, environment)
        if losses := run.summary().get("losses"):
            self.losses = self.losses or losses
            check_losses(losses, self.losses, f"the peer's {way}", self.loss_bound)
        return run

    def fastest(self, ranks, ways, steps=3):
        """Returns the peer's fastest way. If there are several, each is measured once."""
        def speed(way):
            name = f"{ranks} ranks, {', '.join(f'{k} {v}' for k, v in way.items())}"
            if name not in self.tried:
                self.tried[name] = self.peer(ranks, steps, way).tokens_per_second()
                print(f"  peer, {name}: {self.tried[name]:,.0f} tokens/s", file=sys.stderr, flush=True)
            return self.tried[name]
        return max(ways, key=speed) if len(ways) > 1 else ways[0]
