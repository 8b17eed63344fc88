"""The main loop that the peers with a sharded model share: it sets up the process group, runs and times the steps, and
reports them."""
import contextlib
import json
import os
import statistics
import time

import ddp  # from this folder
import torch
import torch.distributed as dist


def run(a, make_trainer, facts):
    """Runs a.steps steps of make_trainer(a, rank, ranks). Writes one JSON line per step to --metrics, and prints one at
    the end, which includes `facts`."""
    torch.set_num_threads(a.threads)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    trainer = make_trainer(a, rank, ranks)
    seconds, losses = [], []
    with open(a.metrics, "w") if a.metrics and rank == 0 else contextlib.nullcontext() as out:
        for index in range(a.steps):
            started = time.perf_counter()
            losses.append(float(trainer.step(index)))
            seconds.append(time.perf_counter() - started)
            if out:
                print(json.dumps({"step": index + 1, "step_seconds": seconds[-1]}), file=out, flush=True)
    shared, peak = torch.tensor(losses, dtype=torch.float64), torch.tensor([ddp.peak_bytes()])
    if ranks > 1:
        dist.all_reduce(shared)
        dist.all_reduce(peak, dist.ReduceOp.MAX)
    if rank == 0:
        median = statistics.median(seconds[a.warmup_steps:])
        print(json.dumps({
            **facts, "ranks": ranks, "losses": [round(loss / ranks, 7) for loss in shared.tolist()],
            "step_seconds": median, "tokens_per_second": a.global_batch_size * a.seq_len / median,
            "peak_memory_bytes": int(peak), "torch": torch.__version__, "threads": torch.get_num_threads()}),
            flush=True)
    if ranks > 1:
        dist.barrier()
        os._exit(0)  # because the destruction of Gloo after functional collectives sometimes calls std::terminate
