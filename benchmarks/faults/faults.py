#!/usr/bin/env python3
"""Measures how soon a training run names the rank or host that fails.

Each trial starts `orthant train` with a tiny model, waits for its third step, injects one fault into the last rank or
the last host (or the first, with --victim first), and measures the time until a message on stderr names a rank that
failed. A message in which that rank reports on itself does not count. With one host, `orthant train` starts the ranks;
with several, benchmarks/hosts/hosts.py emulates the hosts, and rank 0 serves the store.

| fault | what it does |
|---|---|
| kill | SIGKILL to one rank |
| stop | SIGSTOP to one rank |
| freeze | SIGSTOP to all ranks of one host at once; its kernel still acknowledges packets |
| cut | sets the link of one host down; needs root |

  benchmarks/faults/faults.py --ranks 2,8 --hosts 1,4 --trials 5 --json faults.json

freeze and cut need several hosts. A case with fewer ranks than hosts has one rank per host. The table shows the load
average of the machine: with many more ranks than cores, the times include waits for a core.

A table of many trials may take hours. Three options shorten a call:

- With --json, each trial is stored when it ends, and a later call with the same file goes on from there. --minutes ends
  a call early. The table is printed from all trials of the file, and --trials 0 prints it without a new trial.
- --parallel measures several trials at the same time, for cases of at most 8 ranks. Most of a trial is waiting.
- After a warning, the run goes on if the fault is undone: SIGCONT after stop and freeze, and the link set up again
  after cut. Once the run makes steps again and prints nothing, the next fault is injected into the same run, up to
  --per-start times. Only a line that was printed after the injection names the rank. After an error, or after kill, the
  next trial starts a run of its own. The column "starts" is the number of runs, and "earlier" in the JSON file the
  number of faults in the same run before.
"""
import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from common import HOSTS, Runs, add_json_argument, add_orthant_argument, machine, names_of, print_head, print_row

FAULTS = {"kill": 1, "stop": 5, "freeze": 5, "cut": 5}  # limit in seconds for the name of the failed rank
BETWEEN_HOSTS = ("freeze", "cut")
MOST_RANKS_OF_SMALL = 8  # in a case of which --parallel measures several trials at the same time
RUN_FILE = """
[run]
threads_per_rank = 1
[model]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
[data]
path = ["text.txt"]
validation = 0
[training]
steps = 100000000
seq_len = 32
local_batch_size = 1
[validation]
freq = 0
[checkpoint]
interval = 0
"""


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_orthant_argument(p)
    add_json_argument(p)
    numbers = lambda text: [int(part) for part in text.split(",")]
    p.add_argument("--ranks", type=numbers, default=[2, 8, 64], help="numbers of ranks (default: 2,8,64)")
    p.add_argument("--hosts", type=numbers, default=[1, 4], help="numbers of hosts (default: 1,4)")
    p.add_argument("--faults", type=names_of(FAULTS), default=list(FAULTS), help="some of " + ",".join(FAULTS))
    p.add_argument("--trials", type=int, default=100, help="trials of each case (default: 100)")
    p.add_argument("--per-start", type=int, default=10, help="most faults in one run (default: 10)")
    p.add_argument("--parallel", type=int, default=1, help="trials of small cases at the same time (default: 1)")
    p.add_argument("--minutes", type=float, default=float("inf"), help="minutes after which no trial starts")
    p.add_argument("--victim", choices=("first", "last"), default="last")
    p.add_argument("--transport", default="auto", help="run.transport")
    p.add_argument("--until-end", action="store_true", help="also measure the time until all ranks have ended")
    p.add_argument("--limit", type=float, default=60, help="longest wait after a fault, in seconds (default: 60)")
    p.add_argument("--start-limit", type=float, default=600, help="longest wait for the third step, in seconds")
    return p.parse_args()


def processes_of(root):
    """The process ids of the ranks below the process `root`, by rank."""
    ranks, todo = {}, [root]
    while todo:
        pid = todo.pop()
        try:
            todo += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks.update((int(v[5:]), pid) for v in variables if v.startswith(b"RANK=") and pid != root)
    return ranks


class Run:
    """A training run in a folder of its own, which ends with the `with` block."""

    def __init__(self, a, ranks, hosts):
        self.a, self.num_ranks, self.hosts, self.injected_at = a, ranks, hosts, 0
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="orthant-faults-"))

    def __enter__(self):
        (self.folder / "run.toml").write_text(RUN_FILE)
        (self.folder / "text.txt").write_text("".join(f"The door number {i * i % 97} leads to room {i % 13}.\n\n"
                                                      for i in range(40 * self.num_ranks)))
        command = [self.a.orthant, "train", "run.toml", "job.dump_folder=run", f"run.transport={self.a.transport}",
                   f"training.global_batch_size={self.num_ranks}"]
        if self.hosts == 1:
            command.append(f"run.ranks={self.num_ranks}")
        else:
            command = [sys.executable, HOSTS, "--hosts", str(self.hosts), "--ranks-per-host",
                       str(self.num_ranks // self.hosts), "--rate", "none", "--grace", "1000", "--", *command]
        self.errors = self.folder / "errors.txt"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_"))}
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, start_new_session=True,
                                            stdout=subprocess.DEVNULL, stderr=errors,
                                            env={**clean, "OMP_NUM_THREADS": "1"})
        return self

    def __exit__(self, *_):
        for pid in [*processes_of(self.process.pid).values(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def fail(self, what):
        sys.exit(f"{what}:\n{self.errors.read_text()[-3000:]}")

    def wait_for_steps(self, count):
        metrics, deadline = self.folder / "run/metrics.jsonl", time.monotonic() + self.a.start_limit
        while not metrics.exists() or metrics.read_text().count('"loss"') < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.fail(f"no step {count}")
            time.sleep(0.02)

    def inject(self, fault):
        """Injects the fault and returns the ranks that it affects."""
        ranks, per_host = processes_of(self.process.pid), self.num_ranks // self.hosts
        if len(ranks) != self.num_ranks:
            self.fail(f"{len(ranks)} of {self.num_ranks} ranks run")
        self.injected_at = self.errors.stat().st_size
        host = 0 if self.a.victim == "first" else self.hosts - 1
        if fault in ("kill", "stop"):
            victim = 0 if self.a.victim == "first" else self.num_ranks - 1
            os.kill(ranks[victim], signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            return [victim]
        victims = list(range(host * per_host, (host + 1) * per_host))
        if fault == "cut":
            self.set_link(victims, "down")
        else:
            for victim in victims:
                os.kill(ranks[victim], signal.SIGSTOP)
        return victims

    def set_link(self, ranks_of_host, state):
        host = ranks_of_host[0] * self.hosts // self.num_ranks
        subprocess.run(["nsenter", "-t", str(self.process.pid), "-n", "ip", "link", "set", f"host{host}", state],
                       check=True)

    def undo(self, fault, victims):
        """Undoes a fault. Returns the seconds until the run makes steps again, or None if it does not."""
        start, metrics = time.monotonic(), self.folder / "run/metrics.jsonl"
        if fault == "cut":
            self.set_link(victims, "up")
        else:
            ranks = processes_of(self.process.pid)
            for victim in victims:
                os.kill(ranks[victim], signal.SIGCONT)
        for _ in range(2):
            size = metrics.stat().st_size
            goes_on = lambda: metrics.stat().st_size > size or self.process.poll() is not None
            if wait_for(goes_on, self.a.limit)[0] is None:
                return None
        recovered_s, quiet = time.monotonic() - start, False
        while not quiet:
            size = self.errors.stat().st_size
            time.sleep(1.5)
            quiet = self.errors.stat().st_size == size
        return None if self.process.poll() is not None else recovered_s

    def naming_line(self, victims):
        """The first line since the injection that reports a fault and names one of these ranks, and is not from that
        rank itself."""
        for line in self.errors.read_bytes()[self.injected_at:].decode(errors="replace").splitlines():
            message = re.match(r"(?:error|warning): (?:rank (\d+): )?(.*)", line)
            if not message or message[1] and int(message[1]) in victims or re.search(r" again\b", message[2]):
                continue
            for ranks in re.findall(r"\branks? (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)", message[2]):
                ranges = [part.split("-") for part in ranks.split(", ")]
                if any(int(part[0]) <= victim <= int(part[-1]) for part in ranges for victim in victims):
                    return line
        return None


def wait_for(condition, limit_s):
    """Seconds until the condition holds, and its value; None and None after limit_s."""
    start = time.monotonic()
    while not (value := condition()):
        if time.monotonic() - start > limit_s:
            return None, None
        time.sleep(0.01)
    return time.monotonic() - start, value


def trials(a, most, ranks, hosts, fault):
    """The figures of up to `most` faults in one run. There is more than one if the run goes on after each fault."""
    found = []
    with Run(a, ranks, hosts) as run:
        start = time.monotonic()
        run.wait_for_steps(3)
        started_s = time.monotonic() - start
        while len(found) < most:
            time.sleep(random.uniform(0, 1))  # a random phase of the heartbeats
            victims = run.inject(fault)
            named_s, line = wait_for(lambda: run.naming_line(victims), a.limit)
            figures = {"start_s": started_s, "load": os.getloadavg()[0], "named_s": named_s, "line": line,
                       "earlier": len(found), "parallel": a.parallel if ranks <= MOST_RANKS_OF_SMALL else 1}
            found.append(figures)
            if a.until_end:
                alive = lambda: [p for r, p in processes_of(run.process.pid).items() if r not in victims]
                ended_s, _ = wait_for(lambda: not alive(), a.limit)
                figures["ended_s"] = None if ended_s is None else (named_s or a.limit) + ended_s
            if a.until_end or fault == "kill" or len(found) == most or not (line or "").startswith("warning"):
                break
            if (recovered_s := run.undo(fault, victims)) is None:
                break
            figures["recovered_s"] = recovered_s
    return found


def text_of(values, of):
    """The figure with its unit; "never" if some trial has none."""
    return "never" if any(value is None for value in values) else f"{of(values):.2f} s"


def main():
    a, started = arguments(), time.monotonic()
    cases = []
    for ranks in a.ranks:
        for hosts in sorted({min(hosts, ranks) for hosts in a.hosts}):
            if ranks % hosts:
                sys.exit(f"the number of hosts must divide the number of ranks, but {hosts} does not divide {ranks}")
            cases += [(ranks, hosts, fault) for fault in a.faults if hosts > 1 or fault not in BETWEEN_HOSTS]
    names = {f"{case[2]} {a.victim}, {case[0]} ranks, {case[1]} hosts": case for case in cases}

    def run(name, earlier):
        if time.monotonic() - started > 60 * a.minutes:
            return []
        return trials(a, min(a.per_start, a.trials - len(earlier)), *names[name])

    measured = Runs(a.json)
    small = [name for name, (ranks, _, _) in names.items() if ranks <= MOST_RANKS_OF_SMALL]
    measured.take_turns(a.trials, small, run, at_once=a.parallel)
    runs = measured.take_turns(a.trials, [name for name in names if name not in small], run)
    names = {name: case for name, case in names.items() if runs.get(name)}
    print(machine() + "\n")
    print_head(["fault", "victim", "ranks", "hosts", "n", "starts", "named, median", "named, worst", "limit",
                "over the limit", "load", *(["all ended, worst"] if a.until_end else [])])
    for name, (ranks, hosts, fault) in names.items():
        named = [run["named_s"] for run in runs[name]]
        over = sum(value is None or value > FAULTS[fault] for value in named)
        ended = [run.get("ended_s") for run in runs[name]]
        load = statistics.median(run["load"] for run in runs[name])
        starts = sum(not run.get("earlier") for run in runs[name])
        print_row([fault, a.victim, str(ranks), str(hosts), str(len(named)), str(starts),
                   text_of(named, statistics.median), text_of(named, max), f"{FAULTS[fault]} s", str(over),
                   f"{load:.1f}", *([text_of(ended, max)] if a.until_end else [])])
    print("\nFirst message of each case:\n")
    for name in names:
        print(f"    {name}: {runs[name][0]['line']}")


if __name__ == "__main__":
    main()
