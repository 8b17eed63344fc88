#!/usr/bin/env python3
"""The PyTorch peer of benchmarks/sequence/peers.py: the model and the training step of ddp.py, with every sequence
sharded over the ranks.

It uses PyTorch's own building blocks on the CPU, over Gloo. ring: PyTorch's experimental ring attention with zigzag
placement, by all-gathers or by rotation. It is called directly with ATen's flash kernel for CPUs, because the public
context_parallel has no kernel for CPUs. ulysses: one all-to-all for q, k and v, scaled_dot_product_attention, and one
all-to-all back. DistributedDataParallel sums gradients during backward. It writes one JSON line per step to --metrics,
and prints one at the end.

  torchrun --nproc-per-node 2 benchmarks/peers/sequence.py --cut ring_allgather --steps 20
"""
import contextlib

import ddp  # from this folder
import steps
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.nn.parallel import DistributedDataParallel

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
TOKENS = 2  # the dim of [batch, heads, tokens, head size] that is sharded


def arguments():
    p = ddp.parser()
    p.add_argument("--cut", choices=("none", "ring_allgather", "ring_alltoall", "ulysses"), default="none")
    return p.parse_args()


def per_query_head(query, *keys):
    """Repeats key heads, because the kernels require as many key heads as query heads, and do not check it."""
    return (k.repeat_interleave(query.shape[1] // k.shape[1], dim=1) for k in keys)


def flash(query, key, value, **more):
    return FLASH(query, *per_query_head(query, key, value), **more)


def flash_backward(grad_out, query, key, value, **more):
    dq, dk, dv = FLASH_BACKWARD(grad_out, query, *per_query_head(query, key, value), **more)
    return dq, *(d.unflatten(1, (key.shape[1], -1)).sum(2) for d in (dk, dv))


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        out, lse = _attention._templated_ring_attention(dist.group.WORLD, TOKENS, flash, q, k, v, is_causal=True)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        return _attention._templated_ring_attention_backward(
            dist.group.WORLD, TOKENS, flash_backward, grad, "grad_out", q, k, v, out, lse, is_causal=True,
            dropout_p=0.0)


def exchange(sent):
    """An all-to-all of `sent`, [ranks, ...]: row i goes to rank i."""
    sent = sent.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received


def to_heads(*tensors):
    """Redistributes tensors from shards of tokens, [B, H, t, D], to shards of heads, [B, H / ranks, t * ranks, D]. One
    message carries all tensors."""
    ranks = dist.get_world_size()
    rows = [t.unflatten(1, (ranks, -1)).transpose(0, 1).flatten(1) for t in tensors]
    received = exchange(torch.cat(rows, 1)).split([row.shape[1] for row in rows], 1)
    shapes = [(ranks, t.shape[0], t.shape[1] // ranks, *t.shape[2:]) for t in tensors]
    return tuple(r.view(shape).permute(1, 2, 0, 3, 4).flatten(2, 3) for r, shape in zip(received, shapes))


def to_tokens(*tensors):
    """The inverse of to_heads()."""
    ranks = dist.get_world_size()
    parts = [t.unflatten(TOKENS, (ranks, -1)).permute(2, 0, 1, 3, 4) for t in tensors]
    received = exchange(torch.cat([p.flatten(1) for p in parts], 1)).split([p[0].numel() for p in parts], 1)
    return tuple(r.view(p.shape).transpose(0, 1).flatten(1, 2) for r, p in zip(received, parts))


class ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        return to_heads(q, k, v)

    @staticmethod
    def backward(ctx, *grads):
        return to_tokens(*grads)


class ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out):
        return to_tokens(out)[0]

    @staticmethod
    def backward(ctx, grad):
        return to_heads(grad)[0]


def ulysses(q, k, v):
    q, k, v = ToHeads.apply(q, k, v)
    return ToTokens.apply(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]))


def places_of(cut, length, rank, ranks):
    """Returns the positions of a sequence's tokens that a rank holds, in order: zigzag for a ring, or else a contiguous
    chunk."""
    if not cut.startswith("ring"):
        return torch.arange(length).chunk(ranks)[rank]
    parts = torch.arange(length).chunk(2 * ranks)
    return torch.cat((parts[rank], parts[2 * ranks - 1 - rank]))


class Trainer:
    """The model, the optimizer and the training step of one rank, which holds a shard of the tokens of every sequence
    of the batch."""

    def __init__(self, a, rank, ranks):
        if (a.cut == "none") != (ranks == 1):
            raise SystemExit("--cut none is for one rank, and nothing else is")
        self.a, self.rank, self.ranks = a, rank, ranks
        torch.manual_seed(1234)
        model = ddp.Llama(a)
        places = places_of(a.cut, a.seq_len, rank, ranks)
        model.cos, model.sin = model.cos[places], model.sin[places]
        if a.cut != "none":
            if a.cut == "ring_alltoall":
                _attention.set_rotate_method("alltoall")
            core = torch.compiler.disable(RingAttention.apply if a.cut.startswith("ring") else ulysses)
            for block in model.blocks:
                block.core = core
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        if a.compile == "model":
            model = torch.compile(model)
        self.model = model if ranks == 1 else DistributedDataParallel(model, gradient_as_bucket_view=True)
        generator = torch.Generator().manual_seed(0)
        data = torch.randint(a.vocab_size, (8, a.global_batch_size, a.seq_len + 1), generator=generator)
        self.tokens, self.labels = data[..., :-1][..., places].contiguous(), data[..., 1:][..., places].contiguous()

    def step(self, index):
        """Makes one optimizer step. DDP averages gradients over ranks, so the loss is scaled by the number of ranks
        over the number of global tokens."""
        a, i, total = self.a, index % len(self.tokens), 0.0
        batches = list(zip(self.tokens[i].split(a.local_batch_size), self.labels[i].split(a.local_batch_size)))
        for m, (tokens, labels) in enumerate(batches):
            last = self.ranks == 1 or m + 1 == len(batches)
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = self.model(tokens, labels) * (self.ranks / (a.global_batch_size * a.seq_len))
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        for p in self.parameters:
            p.grad = None
        return total


if __name__ == "__main__":
    a = arguments()
    steps.run(a, Trainer, {"cut": a.cut})
