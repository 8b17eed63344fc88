#!/usr/bin/env python3
"""Data parallelism beside PyTorch DistributedDataParallel: same model, batch, ranks and allocator.

For each line of the table the two programs take turns (ours, peer, ours, peer, ...) so that whatever else the machine
does hits both; a run's figure is the median over its steps, the table's is the median over the runs. The peer is first
tried in each of its variants (eager, torch.compile; one thread or all; for bf16 autocast or bf16 weights), and the
fastest is the one that counts.

  python3 benchmarks/data_parallel/run.py [--quick] [--ranks 1,2,4] [--dtypes float32,bfloat16] [--sizes tiny,50m]
"""
import argparse
import itertools
import os
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (SIZES, WARMUP, add_program_arguments, find_programs, machine, print_head, print_row, watch_peer,
                    watch_training, write_corpus)


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


def result(lines, first, tokens, peak, communication):
    seconds = statistics.median(line["step_seconds"] for line in lines[WARMUP:])
    return dict(tokens_per_second=tokens / seconds, first=first, peak=peak, communication=communication)


def run_ours(a, case, folder):
    keys = {**{f"model.{k}": v for k, v in SIZES[case["size"]].items()}, "model.max_position_embeddings": a.seq_len,
            "run.ranks": case["ranks"], "run.threads_per_rank": case["threads"],
            "data.path": case["corpus"], "training.steps": case["steps"], "training.seq_len": a.seq_len,
            "training.global_batch_size": a.local_batch_size * case["ranks"],
            "training.local_batch_size": a.local_batch_size, "training.dtype": case["dtype"], "optimizer.lr": 3e-4}
    lines, first, _, peak = watch_training(a, keys, folder)
    waits = [line["communication_seconds"] / line["step_seconds"] for line in lines[WARMUP:]]
    return result(lines, first, case["tokens"], peak, statistics.median(waits))


def run_peer(a, case, variant, folder, steps=None):
    keys = {**SIZES[case["size"]], "seq_len": a.seq_len, "local_batch_size": a.local_batch_size,
            "global_batch_size": a.local_batch_size * case["ranks"], "steps": steps or case["steps"], **variant}
    threads = keys.pop("threads")
    lines, first, _, peak, summary = watch_peer(a, "ddp.py", case["ranks"], threads, keys, folder)
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
    print_row([case["size"], case["dtype"], str(case["ranks"]), f"{ours['tokens_per_second']:,.0f}",
               f"{peer['tokens_per_second']:,.0f} ({name})", f"{ratio:.2f}x", f"{ours['peak'] / 2**20:,.0f}",
               f"{peer['peak'] / 2**20:,.0f}", f"{ours['first']:.1f}", f"{peer['first']:.1f}",
               share(ours["communication"]), share(peer["communication"])])


def main():
    a = arguments()
    cores = len(os.sched_getaffinity(0))
    print(f"{machine()}; {a.repeats} runs each; {a.local_batch_size} sequences of {a.seq_len} tokens a rank and step; "
          f"peer's allocator: {os.path.basename(a.allocator)}\n")
    print_head(["model", "dtype", "ranks", "Orthant tokens/s", "DDP tokens/s", "ratio", "peak MiB a rank", "DDP",
                "s to first step", "DDP", "communication not hidden", "DDP"])
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
