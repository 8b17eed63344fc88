#!/usr/bin/env python3
"""The PyTorch peer of benchmarks/comm: torch.distributed over Gloo, isend and irecv around a ring, or an all_reduce of
float32 in place. It measures the same operations as comm_benchmark.cc, in the same way, and prints the same lines.

  python3 benchmarks/peers/c10d_ring.py --ranks 2 --op ring --bytes 4096,1048576 --seconds 1
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings

FEWEST, BATCHES = 5, 20


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--op", choices=("ring", "all_reduce"), default="ring")
    p.add_argument("--bytes", default="4096", help="sizes in bytes, separated by commas")
    p.add_argument("--seconds", type=float, default=1)
    p.add_argument("--rank", type=int, help="set by this program for the ranks that it starts")
    p.add_argument("--store", help="set by this program for the ranks that it starts")
    return p.parse_args()


def quantile(values, share):
    return sorted(values)[round(share * (len(values) - 1))]


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def time_of(operation, count):
    start = time.perf_counter()
    for _ in range(count):
        operation()
    return time.perf_counter() - start


def measure(a, size):
    import torch
    import torch.distributed as dist
    into, out = torch.full((size // 4,), float(a.rank)), torch.ones(size // 4)
    following, previous = (a.rank + 1) % a.ranks, (a.rank - 1) % a.ranks

    def ring():
        for work in [dist.isend(into, following), dist.irecv(out, previous)]:
            work.wait()

    def all_reduce():
        dist.all_reduce(out)

    operation = ring if a.op == "ring" else all_reduce
    operation()
    assert bool((out == (previous if a.op == "ring" else a.ranks)).all()), "the result is wrong"
    out.zero_()
    trial, count = 1, 0
    while not count:
        seconds = time_of(operation, trial)
        fitting = max(FEWEST, round(trial * a.seconds / max(seconds, 1e-9)))
        said = torch.tensor([2 * trial if seconds < a.seconds / 10 else -fitting])
        dist.broadcast(said, 0)
        trial, count = (int(said), 0) if said > 0 else (0, -int(said))
    batches = min(count, BATCHES)
    size_of_batch = count // batches
    cpu = cpu_seconds()
    each = [time_of(operation, size_of_batch) / size_of_batch for _ in range(batches)]
    cpu = torch.tensor([cpu_seconds() - cpu], dtype=torch.float64)
    dist.all_reduce(cpu)
    count = batches * size_of_batch
    sent = 1e-9 * size * count * (a.ranks if a.op == "ring" else 2 * (a.ranks - 1))
    if a.rank == 0:
        print(json.dumps(dict(program="c10d", op=a.op, ranks=a.ranks, bytes=size, operations=count,
                              **{f"{name}_us": 1e6 * quantile(each, share)
                                 for name, share in (("median", 0.5), ("p10", 0.1), ("p90", 0.9))},
                              cpu_s_per_gb=float(cpu) / sent)), flush=True)


def main():
    a = arguments()
    if a.rank is None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank), "--store", f"{folder}/store"],
                                      env=environment) for rank in range(a.ranks)]
            sys.exit(max(abs(rank.wait()) for rank in ranks))
    warnings.filterwarnings("ignore", message=".*NumPy.*")
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{a.store}", rank=a.rank, world_size=a.ranks)
    for size in map(int, a.bytes.split(",")):
        measure(a, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
