#!/usr/bin/env python3
"""The PyTorch peer of benchmarks/data_parallel: the same LLaMA-style training step, written for speed.

It uses DistributedDataParallel over Gloo, scaled_dot_product_attention, fused AdamW, gradients as bucket views, and
clipping by the global norm. bf16 is by autocast, or with bf16 weights and float32 masters. Execution is eager or with
torch.compile. Tokens are drawn before the first step, so that a data loader costs no time. It writes one JSON line per
step to --metrics, and prints one JSON line at the end.

  torchrun --nproc-per-node 2 benchmarks/peers/ddp.py --steps 20 --dtype float32
"""
import argparse
import contextlib
import json
import os
import statistics
import time
import warnings

warnings.filterwarnings("ignore", message=".*NumPy.*")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parser():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("hidden_size", 256), ("intermediate_size", 688), ("num_hidden_layers", 4),
                          ("num_attention_heads", 8), ("num_key_value_heads", 4), ("vocab_size", 512), ("seq_len", 256),
                          ("global_batch_size", 16), ("local_batch_size", 8), ("steps", 30), ("warmup_steps", 5),
                          ("threads", 1), ("steps_without_communication", 10)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--dtype", choices=("float32", "bfloat16_autocast", "bfloat16_master"), default="float32")
    p.add_argument("--compile", choices=("none", "model", "ddp"), default="none",
                   help="module that torch.compile compiles: none, the model inside DDP, or the DDP module")
    p.add_argument("--attention", choices=("gqa", "repeat"), default="gqa",
                   help="use enable_gqa, or repeat key and value heads")
    p.add_argument("--tie_word_embeddings", choices=("false", "true"), default="false")
    p.add_argument("--metrics", help="file for one JSON line per step")
    return p


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-5)


def rotate(x, cos, sin):
    """Applies rotary position embeddings. x: [batch, heads, time, dim]; cos and sin: [time, dim], with the first half
    of the sine negated."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.kv_heads = a.num_attention_heads, a.num_key_value_heads
        self.head_dim, self.attention = a.hidden_size // self.heads, a.attention
        kv = self.kv_heads * self.head_dim
        self.norm_1, self.norm_2 = RMSNorm(a.hidden_size), RMSNorm(a.hidden_size)
        self.qkv = nn.Linear(a.hidden_size, a.hidden_size + 2 * kv, bias=False)
        self.out = nn.Linear(a.hidden_size, a.hidden_size, bias=False)
        self.gate_up = nn.Linear(a.hidden_size, 2 * a.intermediate_size, bias=False)
        self.down = nn.Linear(a.intermediate_size, a.hidden_size, bias=False)

    def attend(self, x, cos, sin):
        batch, time_, _ = x.shape
        qkv = self.qkv(x).view(batch, time_, -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        y = self.core(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.out(y.transpose(1, 2).reshape(batch, time_, -1))

    def core(self, q, k, v):
        if self.attention == "repeat":
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != k.shape[1])

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm_1(x), cos, sin)
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocab_size, a.hidden_size)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.num_hidden_layers))
        self.norm = RMSNorm(a.hidden_size)
        self.head = nn.Linear(a.hidden_size, a.vocab_size, bias=False)
        if a.tie_word_embeddings == "true":
            self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        dim = a.hidden_size // a.num_attention_heads
        angle = torch.outer(torch.arange(a.seq_len), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
        # These are plain attributes, because DDP would broadcast buffers before each forward.
        self.cos = torch.cat((angle.cos(), angle.cos()), -1)
        self.sin = torch.cat((-angle.sin(), angle.sin()), -1)

    def forward(self, tokens, labels):
        """Returns the sum of the token losses."""
        x = self.embedding(tokens)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        cos, sin = self.cos.to(dtype), self.sin.to(dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.loss(self.head(self.norm(x)), labels)

    def loss(self, logits, labels):
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1), reduction="sum")


class Trainer:
    """The model, the optimizer and the training step of one rank."""

    def __init__(self, a, rank, ranks):
        self.a, self.rank, self.ranks = a, rank, ranks
        torch.manual_seed(1234)
        model = Llama(a)
        if a.dtype == "bfloat16_master":
            model = model.bfloat16()
        self.parameters = [p for p in model.parameters()]
        self.masters = self.parameters
        if a.dtype == "bfloat16_master":
            self.masters = [p.detach().float() for p in self.parameters]
            for master in self.masters:
                master.grad = torch.zeros_like(master)
        self.optimizer = torch.optim.AdamW(self.masters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        if a.compile == "model":
            model = torch.compile(model)
        self.no_sync = contextlib.nullcontext
        if ranks > 1:
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
            self.no_sync = model.no_sync
        self.model = torch.compile(model) if a.compile == "ddp" else model
        share = a.global_batch_size // ranks
        self.microbatches = share // a.local_batch_size
        if self.microbatches * a.local_batch_size * ranks != a.global_batch_size:
            raise SystemExit("global_batch_size must be local_batch_size x ranks x a whole number")
        generator = torch.Generator().manual_seed(rank)
        self.data = torch.randint(a.vocab_size, (8, share, a.seq_len + 1), generator=generator)

    def step(self, index, communicate=True):
        """Makes one optimizer step. DDP averages gradients over ranks, so the loss is scaled by the number of ranks
        over the number of global tokens."""
        a, tokens = self.a, self.data[index % len(self.data)]
        scale = self.ranks / (a.global_batch_size * a.seq_len)
        total = 0.0
        for m in range(self.microbatches):
            batch = tokens[m * a.local_batch_size:(m + 1) * a.local_batch_size]
            last = m + 1 == self.microbatches
            with contextlib.nullcontext() if last and communicate else self.no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bfloat16_autocast"):
                    loss = self.model(batch[:, :-1], batch[:, 1:].contiguous()) * scale
                loss.backward()
            total += loss.detach()
        self.update()
        return total

    @torch.no_grad()
    def update(self):
        if self.masters is not self.parameters:
            torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.parameters])
        nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
        self.optimizer.step()
        if self.masters is not self.parameters:
            torch._foreach_copy_(self.parameters, self.masters)
        for p in self.parameters:
            p.grad = None


def peak_bytes():
    """Returns the peak resident set of this process in bytes. getrusage would include the memory that the launcher used
    before it executed this program."""
    with open("/proc/self/status") as stream:
        return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmHWM"))


def timed_steps(trainer, steps, communicate, out):
    seconds = []
    for index in range(steps):
        started = time.perf_counter()
        loss = float(trainer.step(index, communicate))
        seconds.append(time.perf_counter() - started)
        if out:
            print(json.dumps({"step": index + 1, "loss": loss, "step_seconds": seconds[-1]}), file=out, flush=True)
    return seconds


def main():
    a = parser().parse_args()
    torch.set_num_threads(a.threads)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    trainer = Trainer(a, rank, ranks)
    with open(a.metrics, "w") if a.metrics and rank == 0 else contextlib.nullcontext() as out:
        seconds = timed_steps(trainer, a.steps, True, out)
    peak = torch.tensor([peak_bytes()])
    median, alone = statistics.median(seconds[a.warmup_steps:]), None
    if ranks > 1:
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        if a.steps_without_communication > 2:
            alone = statistics.median(timed_steps(trainer, a.steps_without_communication, False, None)[2:])
    if rank == 0:
        print(json.dumps({
            "parameters": sum(p.numel() for p in trainer.parameters), "step_seconds": median,
            "tokens_per_second": a.global_batch_size * a.seq_len / median, "first_step_seconds": seconds[0],
            "communication_share": None if alone is None else max(0.0, 1 - alone / median),
            "peak_memory_bytes": int(peak), "torch": torch.__version__,
            "threads": torch.get_num_threads()}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
