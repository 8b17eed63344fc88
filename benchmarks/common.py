"""What the benchmarks share: the machine's name, tables, and our program and its peers run as processes."""
import glob
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
PEERS = os.path.join(ROOT, "benchmarks", "peers")
HOSTS = os.path.join(ROOT, "benchmarks", "hosts", "hosts.py")
SIZES = {
    "tiny": dict(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                 num_key_value_heads=4, vocab_size=512),
    "50m": dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=12, num_attention_heads=8,
                num_key_value_heads=4, vocab_size=16000),
}
WARMUP = 5  # steps left out of every median
STEPS_ONLY = {"data.validation": 0, "validation.freq": 0, "checkpoint.interval": 0, "lr_scheduler.warmup_steps": 0,
              "metrics.enable_tensorboard": "false"}


def machine():
    with open("/proc/cpuinfo") as stream:
        cpu = next((line.split(":")[1].strip() for line in stream if line.startswith("model name")), "unknown")
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores"


def print_row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def print_head(cells):
    print_row(cells)
    print("|" + "---|" * len(cells), flush=True)


def add_orthant_argument(p):
    p.add_argument("--orthant", default=os.path.join(ROOT, "build", "orthant"), help="the program")


def add_program_arguments(p):
    """What benchmarks beside a peer ask about the two programs."""
    add_orthant_argument(p)
    p.add_argument("--python", default=None, help="a python3 that imports torch; default: that of .venv")
    p.add_argument("--allocator", default="auto", help="preloaded into the peer: a library, auto (mimalloc) or none")
    p.add_argument("--no-compile", action="store_true", help="try the peer in eager mode only")


def own_python():
    own = os.path.join(ROOT, ".venv", "bin", "python3")
    return own if os.path.exists(own) else "python3"


def find_programs(a):
    a.python = a.python or own_python()
    if a.allocator == "auto":
        found = sorted(glob.glob("/usr/lib/*/libmimalloc.so*") + glob.glob("/usr/lib/libmimalloc.so*"))
        a.allocator = found[0] if found else "none"


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stderr[-3000:]}{done.stdout[-1000:]}")
    return done.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def read_json_lines(path, field="step_seconds"):
    """The objects of a file of metrics that have the field."""
    with open(path) as stream:
        return [line for line in json_lines(stream.read()) if field in line]


def orthant_command(orthant, name, keys, folder):
    """The command with all keys on its line, and an empty run file in the folder."""
    empty = os.path.join(folder, "empty.toml")
    with open(empty, "w"):
        pass
    return [orthant, name, empty, *(f"{k}={v}" for k, v in keys.items())]


def on_hosts(hosts, ranks_per_host, rate, command, report=None):
    """What the ranks print on emulated hosts; ends the program where there can be none, or where a rank fails."""
    options = ["--hosts", str(hosts), "--ranks-per-host", str(ranks_per_host), "--rate", rate]
    command = [sys.executable, HOSTS, *options, *(["--report", report] if report else []), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.stderr.write(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        sys.exit(done.returncode)  # 77: no emulated hosts here, and it has said why
    return done.stdout


def peak_resident_bytes(root):
    """The largest resident set so far of any process below (and with) this one: a rank of either program."""
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


def watch(command, metrics, environment, folder):
    """Runs a program that writes one JSON line a step; returns its lines, seconds to the first, its output, and the
    largest resident set of any of its processes."""
    started, first, peak = time.monotonic(), None, 0
    with open(os.path.join(folder, "output"), "w+") as out:
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
        sys.exit(f"{' '.join(command)}\nfailed with {process.returncode}:\n{text[-3000:]}")
    return read_json_lines(metrics), first, text, peak


def watch_training(a, keys, folder):
    """`orthant train` with these keys; what watch() returns."""
    dump = os.path.join(folder, "run")
    shutil.rmtree(dump, ignore_errors=True)
    command = orthant_command(a.orthant, "train", {**STEPS_ONLY, "job.dump_folder": dump, **keys}, folder)
    return watch(command, os.path.join(dump, "metrics.jsonl"), {}, folder)


def watch_peer(a, program, ranks, threads, keys, folder):
    """A program of peers/ under torchrun; what watch() returns, and the object that the peer prints at its end."""
    metrics = os.path.join(folder, "peer.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    command = [a.python, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
               "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", os.path.join(PEERS, program)]
    environment = {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    if a.allocator != "none":
        environment["LD_PRELOAD"] = a.allocator
    keys = {"warmup_steps": WARMUP, **keys, "threads": threads, "metrics": metrics}
    lines, first, text, peak = watch(command + [word for k, v in keys.items() for word in (f"--{k}", str(v))],
                                     metrics, environment, folder)
    return lines, first, text, peak, json_lines(text)[-1]


def write_corpus(a, folder):
    """Two megabytes of words, tokenized beforehand, so that no program's first step contains it."""
    generator = random.Random(1)
    words = ["".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 9))) for _ in range(2000)]
    text, prefix = os.path.join(folder, "words.txt"), os.path.join(folder, "words")
    with open(text, "w") as stream:
        stream.writelines(" ".join(generator.choices(words, k=12)) + "\n" for _ in range(26000))
    subprocess.run([a.orthant, "tokenize", text, "--output", prefix, "--tokenizer", "byte"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return prefix


def relative(have, want):
    error = abs(have - want) / abs(want)
    return math.inf if math.isnan(error) else error


def loss_bounds(steps, parameters, first, of_gradient, max_norm):
    """By step of one device's run: how far another layout's loss may be from it, of itself. The first forward's
    roundings, and what weights drift by since (docs/numerics.md, "whole runs"), gradients being off by of_gradient."""
    drift, bounds = 0.0, []
    for step in steps:
        bounds.append(first + drift / step["loss"])
        drift += 2 * step["lr"] * math.sqrt(parameters) * of_gradient * min(max_norm, step["grad_norm"])
    return bounds
