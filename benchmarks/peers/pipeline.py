#!/usr/bin/env python3
"""The PyTorch peer of benchmarks/pipeline/peers.py: the training step of ddp.py with torch.distributed.pipelining.

Stages consist of the blocks of ddp.py and communicate over Gloo. Their shapes are given at construction, so that no
step infers them. The loss of a microbatch is divided by the tokens of the full batch, so that gradients are summed and
never divided. Each rank's AdamW (fused) has the weights of its stages; the norm for clipping takes one all-reduce. One
rank has no pipeline, and computes the same microbatches one after another. It writes one JSON line per step to
--metrics, and prints one at the end.

  torchrun --nproc-per-node 2 benchmarks/peers/pipeline.py --schedule zbv --steps 20
"""
import contextlib
import json
import os
import statistics
import time

import ddp  # from this folder
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

# name -> class, stages per rank, and whether stages are placed in a V: down the ranks and back up
SCHEDULES = {
    "gpipe": (schedules.ScheduleGPipe, 1, False),
    "1f1b": (schedules.Schedule1F1B, 1, False),
    "interleaved_1f1b": (schedules.ScheduleInterleaved1F1B, 2, False),
    "interleaved_zero_bubble": (schedules.ScheduleInterleavedZeroBubble, 2, False),
    "zbv": (schedules.ScheduleZBVZeroBubble, 2, True),
    "dual_pipe_v": (schedules.ScheduleDualPipeV, 2, True),
}


def arguments():
    p = ddp.parser()
    p.add_argument("--schedule", choices=tuple(SCHEDULES), default="1f1b")
    p.add_argument("--defer_recv", type=int, default=0, help="1: post each receive only when its result is read")
    return p.parse_args()


class Stage(nn.Module):
    """Some blocks of the model. The first stage also has the embedding, and the last stage the head."""

    def __init__(self, model, layers, first, last):
        super().__init__()
        self.blocks = nn.ModuleList(model.blocks[i] for i in layers)
        self.embedding = model.embedding if first else None
        self.norm, self.head = (model.norm, model.head) if last else (None, None)
        self.cos, self.sin = model.cos, model.sin

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return x if self.head is None else self.head(self.norm(x))


class Trainer:
    """The stages, the optimizer and the training step of one rank."""

    def __init__(self, a, rank, ranks):
        self.a, self.ranks = a, ranks
        self.microbatches = a.global_batch_size // a.local_batch_size
        torch.manual_seed(1234)
        model = ddp.Llama(a)
        kind, count, folded = SCHEDULES[a.schedule] if ranks > 1 else (None, 1, False)
        total, here = ranks * count, [rank + i * ranks for i in range(count)]
        if folded:
            here = [rank, total - 1 - rank]
        self.first, self.last = 0 in here, total - 1 in here
        modules = [self.stage_module(model, index, total) for index in here]
        if kind:
            stages = [self.stage(module, index, total) for module, index in zip(modules, here)]
            options = {"defer_pp_recv": bool(a.defer_recv)} if count > 1 else {}
            self.schedule = kind(stages if count > 1 else stages[0], self.microbatches, loss_fn=self.loss,
                                 scale_grads=False, **options)
        self.modules = modules
        self.parameters = [p for module in modules for p in module.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        generator = torch.Generator().manual_seed(0)
        self.data = torch.randint(a.vocab_size, (8, a.global_batch_size, a.seq_len + 1), generator=generator)

    def stage_module(self, model, index, total):
        per, more = divmod(self.a.num_hidden_layers, total)
        begin = index * per + min(index, more)
        module = Stage(model, range(begin, begin + per + (index < more)), index == 0, index == total - 1)
        if self.a.compile == "model":
            module.compile()
        return module

    def stage(self, module, index, total):
        a = self.a
        tokens = torch.zeros(a.local_batch_size, a.seq_len, dtype=torch.long)
        stream = torch.zeros(a.local_batch_size, a.seq_len, a.hidden_size)
        logits = torch.zeros(a.local_batch_size, a.seq_len, a.vocab_size)
        return PipelineStage(module, index, total, torch.device("cpu"),
                             input_args=tokens if index == 0 else stream.requires_grad_(),
                             output_args=logits.requires_grad_() if index == total - 1 else stream.requires_grad_())

    def loss(self, logits, labels):
        a = self.a
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return loss / (a.global_batch_size * a.seq_len)

    def gradients(self, tokens, labels):
        """Computes the gradients. Returns the loss of the batch on the rank of the last stage, and 0 on others."""
        losses = []
        if self.ranks > 1:
            # Only the rank of the last stage may pass labels, and only the rank of the first stage tokens.
            last = {"target": labels, "losses": losses} if self.last else {}
            self.schedule.step(*([tokens] if self.first else []), return_outputs=False, **last)
            return sum(loss.item() for loss in losses)
        for part, target in zip(tokens.chunk(self.microbatches), labels.chunk(self.microbatches)):
            losses.append(self.loss(self.modules[0](part), target))
            losses[-1].backward()
        return sum(loss.item() for loss in losses)

    def step(self, index):
        batch = self.data[index % len(self.data)]
        loss = self.gradients(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        with torch.no_grad():
            gradients = [p.grad for p in self.parameters]
            squares = torch.stack(torch._foreach_norm(gradients)).square().sum()
            if self.ranks > 1:
                dist.all_reduce(squares)
            torch._foreach_mul_(gradients, torch.clamp(1.0 / (squares.sqrt() + 1e-6), max=1.0))
            self.optimizer.step()
            for p in self.parameters:
                p.grad = None
        return loss


def main():
    a = arguments()
    torch.set_num_threads(a.threads)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    trainer = Trainer(a, rank, ranks)
    seconds, losses = [], []
    with open(a.metrics, "w") if a.metrics and rank == 0 else contextlib.nullcontext() as out:
        for index in range(a.steps):
            started = time.perf_counter()
            losses.append(trainer.step(index))
            seconds.append(time.perf_counter() - started)
            if out:
                print(json.dumps({"step": index + 1, "step_seconds": seconds[-1]}), file=out, flush=True)
    shared = torch.tensor(losses, dtype=torch.float64)
    if ranks > 1:
        dist.all_reduce(shared)  # one rank has the losses, the others have zeros
    if rank == 0:
        median = statistics.median(seconds[a.warmup_steps:])
        print(json.dumps({"schedule": a.schedule, "ranks": ranks, "step_seconds": median,
                          "losses": [round(loss, 7) for loss in shared.tolist()],
                          "tokens_per_second": a.global_batch_size * a.seq_len / median,
                          "torch": torch.__version__, "threads": torch.get_num_threads()}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
