#!/usr/bin/env python3
"""Data parallelism beside PyTorch DistributedDataParallel: same model, batch, ranks and allocator.

For each line of the table the two programs take turns (ours, peer, ours, peer, ...) so that whatever else the machine
does hits both; a run's figure is the median over its steps, the table's is the median over the runs. The peer is first
tried in each of its variants (eager, torch.compile; one thread or all; for bf16 autocast or bf16 weights), and the
fastest is the one that counts.

  python3 benchmarks/data_parallel/run.py [--quick] [--ranks 1,2,4] [--dtypes float32,bfloat16] [--sizes tiny,50m]
"""
import argparse
import glob
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SIZES = {
    "tiny": dict(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                 num_key_value_heads=4, vocab_size=512),
    "50m": dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=12, num_attention_heads=8,
                num_key_value_heads=4, vocab_size=16000),
}
WARMUP = 5  # steps left out of every median


def add_program_arguments(p):
    """What both benchmarks beside a peer ask about the two programs."""
    p.add_argument("--orthant", default=os.path.join(ROOT, "build", "orthant"), help="the program")
    p.add_argument("--python", default=None, help="a python3 that imports torch; default: that of .venv")
    p.add_argument("--allocator", default="auto", help="preloaded into the peer: a library, auto (mimalloc) or none")
    p.add_argument("--no-compile", action="store_true", help="try the peer in eager mode only")


def find_programs(a):
    if a.python is None:
        own = os.path.join(ROOT, ".venv", "bin", "python3")
        a.python = own if os.path.exists(own) else "python3"
    if a.allocator == "auto":
        found = sorted(glob.glob("/usr/lib/*/libmimalloc.so*") + glob.glob("/usr/lib/libmimalloc.so*"))
        a.allocator = found[0] if found else "none"


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add_program_arguments(p)
    quick = "--quick" in sys.argv
    p.add_argument("--ranks", default="1,2" if quick else "1,2,4")
    p.add_argument("--sizes", default="tiny" if quick else "tiny,50m")
    p.add_argument("--dtypes", default="float32,bfloat16")
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="runs of each program a line")
    p.add_argument("--steps", type=int, default=12 if quick else 40, help="steps a run (50m: a third)")
    p.add_argument("--seq-len", type=int, default=256)
    p.add_argument("--local-batch-size", type=int, default=8, help="sequences a rank and step")
    p.add_argument("--quick", action="store_true", help="does it work? few steps, eager, smaller defaults")
    a = p.parse_args()
    a.no_compile |= a.quick
    find_programs(a)
    return a


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


def run(command, metrics, environment, folder):
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
    with open(metrics) as stream:
        lines = [json.loads(line) for line in stream if '"step_seconds"' in line]
    return lines, first, text, peak


def result(lines, first, tokens, peak, communication):
    seconds = statistics.median(line["step_seconds"] for line in lines[WARMUP:])
    return dict(tokens_per_second=tokens / seconds, first=first, peak=peak, communication=communication)


def run_ours(a, case, folder):
    dump = os.path.join(folder, "run")
    shutil.rmtree(dump, ignore_errors=True)
    keys = {**{f"model.{k}": v for k, v in SIZES[case["size"]].items()}, "model.max_position_embeddings": a.seq_len,
            "job.dump_folder": dump, "run.ranks": case["ranks"], "run.threads_per_rank": case["threads"],
            "data.path": case["corpus"], "data.validation": 0, "training.steps": case["steps"],
            "training.seq_len": a.seq_len,
            "training.global_batch_size": a.local_batch_size * case["ranks"],
            "training.local_batch_size": a.local_batch_size, "training.dtype": case["dtype"], "optimizer.lr": 3e-4,
            "lr_scheduler.warmup_steps": 0, "validation.freq": 0, "metrics.enable_tensorboard": "false",
            "checkpoint.interval": 0}
    with open(os.path.join(folder, "empty.toml"), "w"):
        pass
    command = [a.orthant, "train", os.path.join(folder, "empty.toml"), *(f"{k}={v}" for k, v in keys.items())]
    lines, first, _, peak = run(command, os.path.join(dump, "metrics.jsonl"), {}, folder)
    waits = [line["communication_seconds"] / line["step_seconds"] for line in lines[WARMUP:]]
    return result(lines, first, case["tokens"], peak, statistics.median(waits))


def run_peer(a, case, variant, folder, steps=None):
    metrics = os.path.join(folder, "peer.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    keys = {**SIZES[case["size"]], "seq_len": a.seq_len, "local_batch_size": a.local_batch_size,
            "global_batch_size": a.local_batch_size * case["ranks"], "steps": steps or case["steps"],
            "warmup_steps": WARMUP, "threads": case["threads"], "metrics": metrics, **variant}
    command = [a.python, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", str(case["ranks"]),
               "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
               os.path.join(ROOT, "benchmarks", "peers", "ddp.py")]
    environment = {"OMP_NUM_THREADS": str(variant["threads"]), "PYTHONWARNINGS": "ignore"}
    if a.allocator != "none":
        environment["LD_PRELOAD"] = a.allocator
    lines, first, text, peak = run(command + [word for k, v in keys.items() for word in (f"--{k}", str(v))],
                             metrics, environment, folder)
    summary = json.loads([line for line in text.splitlines() if line.startswith('{"parameters"')][-1])
    return result(lines, first, case["tokens"], peak, summary["communication_share"])


def variants(a, case):
    """The peer's ways to run this case. Small products may be faster with one thread than with all."""
    compilers = ["none"] if a.no_compile else ["none", "model"] if case["ranks"] == 1 else ["none", "model", "ddp"]
    dtypes = ["bfloat16_autocast", "bfloat16_master"] if case["dtype"] == "bfloat16" else [case["dtype"]]
    for compiled, dtype, threads in itertools.product(compilers, dtypes, sorted({1, case["threads"]})):
        yield {"dtype": dtype, "compile": compiled, "threads": threads}


def median_of(results):
    """Field by field; a field that no run knows stays None."""
    return {key: statistics.median(known) if (known := [r[key] for r in results if r[key] is not None]) else None
            for key in results[0]}


def measure(a, case, folder):
    """One line of the table."""
    tried = []
    for variant in variants(a, case):
        speed = run_peer(a, case, variant, folder, steps=WARMUP + 5)["tokens_per_second"]
        tried.append((speed, variant))
        print(f"  peer {', '.join(f'{k} {v}' for k, v in variant.items())}: {speed:,.0f} tokens/s", file=sys.stderr)
    best = max(tried, key=lambda entry: entry[0])[1]
    ours, peer = [], []
    for repeat in range(a.repeats):
        ours.append(run_ours(a, case, folder))
        peer.append(run_peer(a, case, best, folder))
        print(f"  {repeat + 1}/{a.repeats}: ours {ours[-1]['tokens_per_second']:,.0f}, "
              f"peer {peer[-1]['tokens_per_second']:,.0f} tokens/s", file=sys.stderr)
    return median_of(ours), median_of(peer), best


def share(value):
    return "-" if value is None else f"{100 * value:.0f} %"


def print_line(case, ours, peer, best):
    name = {"none": "eager", "model": "compiled", "ddp": "compiled (DDP)"}[best["compile"]]
    if best["dtype"] != case["dtype"]:
        name += ", " + best["dtype"].split("_")[1]
    ratio = ours["tokens_per_second"] / peer["tokens_per_second"]
    print(f"| {case['size']} | {case['dtype']} | {case['ranks']} | {ours['tokens_per_second']:,.0f} | "
          f"{peer['tokens_per_second']:,.0f} ({name}) | {ratio:.2f}x | "
          f"{ours['peak'] / 2**20:,.0f} | {peer['peak'] / 2**20:,.0f} | {ours['first']:.1f} | {peer['first']:.1f} | "
          f"{share(ours['communication'])} | {share(peer['communication'])} |", flush=True)


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


def main():
    a = arguments()
    cores = len(os.sched_getaffinity(0))
    with open("/proc/cpuinfo") as stream:
        cpu = next((line.split(":")[1].strip() for line in stream if line.startswith("model name")), "unknown")
    print(f"{cpu}, {cores} cores; {a.repeats} runs each; {a.local_batch_size} sequences of {a.seq_len} tokens a rank "
          f"and step; peer's allocator: {os.path.basename(a.allocator)}\n")
    print("| model | dtype | ranks | Orthant tokens/s | DDP tokens/s | ratio | peak MiB a rank | DDP | s to first step "
          "| DDP | communication not hidden | DDP |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(a, folder)
        for size in a.sizes.split(","):
            for dtype in a.dtypes.split(","):
                for ranks in map(int, a.ranks.split(",")):
                    steps = a.steps if size == "tiny" else max(WARMUP + 5, a.steps // 3)
                    case = dict(size=size, dtype=dtype, ranks=ranks, threads=max(1, cores // ranks), steps=steps,
                                corpus=corpus, tokens=a.local_batch_size * ranks * a.seq_len)
                    print(f"{size}, {dtype}, {ranks} ranks", file=sys.stderr)
                    print_line(case, *measure(a, case, folder))


if __name__ == "__main__":
    main()
