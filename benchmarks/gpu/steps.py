#!/usr/bin/env python3
"""Measures whole training steps of LLaMA-style models on one GPU. benchmarks/plan/published.py compares plans with
them.

The program is what a careful user of PyTorch would write for one device: bfloat16 weights with float32 masters,
gradients that products accumulate in float32, cuDNN's attention (FlashAttention 2 where it has none), fused kernels by
torch.compile for norms, rotary positions, SwiGLU and the loss, a head that holds the logits of one chunk of tokens,
clipping, and fused AdamW. It is no part of Orthant; train.py measures Orthant on the same cases. Layers are cut so
that a model fits. Tokens are random.

It writes one JSON line per case: its sizes, the median time of a step, and the bytes of the allocator at their peak.

  python3 benchmarks/gpu/steps.py > steps.jsonl
"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from cases import CASES, WIDTHS  # from this folder
from operations import add_norm, add_product, fused, swiglu
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

STEPS = 6
WARMUP_STEPS = 2
CHUNK = 2048  # tokens whose logits exist at a time


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, gradient):
        ctx.save_for_backward(x, weight)
        ctx.gradient = gradient
        return x @ weight.t()

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        add_product(dy, x, ctx.gradient)
        return dy @ weight, None, None


class Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, tokens, weight, gradient):
        ctx.save_for_backward(tokens)
        ctx.gradient = gradient
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx, dy):
        tokens, = ctx.saved_tensors
        ctx.gradient.index_add_(0, tokens, dy.float())
        return None, None, None, None


@fused
def loss_of_chunk(logits, targets, scale):
    """Returns the sum of the losses, and the gradient of the logits. The targets have the shape [tokens, 1]."""
    wide = logits.float()
    log_sum = torch.logsumexp(wide, -1, keepdim=True)
    hit = torch.arange(wide.shape[-1], device=wide.device) == targets
    loss = (log_sum.squeeze(-1) - torch.where(hit, wide, 0).sum(-1)).sum()
    return loss, ((torch.exp(wide - log_sum) - hit.float()) * scale).to(logits.dtype)


class HeadAndLoss(torch.autograd.Function):
    """The products and the loss of chunks of tokens, with their gradients, in the forward pass."""
    @staticmethod
    def forward(ctx, x, weight, gradient, targets, scale):
        total, dx = torch.zeros((), device=x.device), torch.empty_like(x)
        for begin in range(0, len(x), CHUNK):
            part = x[begin:begin + CHUNK]
            loss, dlogits = loss_of_chunk(part @ weight.t(), targets[begin:begin + CHUNK, None], scale)
            total += loss
            torch.mm(dlogits, weight, out=dx[begin:begin + CHUNK])
            add_product(dlogits, part, gradient)
        ctx.save_for_backward(dx)
        return total * scale

    @staticmethod
    def backward(ctx, dloss):
        dx, = ctx.saved_tensors
        return dx, None, None, None, None


@fused
def rotate(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Model:
    def __init__(self, width, layers, sequences, seq_len):
        self.width, self.sequences = width, sequences
        self.weights, self.gradients, self.norms = [], [], []
        heads = (width.heads + 2 * width.kv_heads) * width.head
        self.embedding = self.matrix(width.vocabulary, width.hidden)
        self.layers = [(self.scale(), self.matrix(heads, width.hidden),
                        self.matrix(width.hidden, width.heads * width.head), self.scale(),
                        self.matrix(2 * width.mlp, width.hidden), self.matrix(width.hidden, width.mlp))
                       for _ in range(layers)]
        self.last_norm, self.head = self.scale(), self.matrix(width.vocabulary, width.hidden)
        self.masters = [w.float() for w in self.weights]
        self.momenta = [[torch.zeros_like(p) for p in (*self.masters, *self.norms)] for _ in range(2)]
        self.steps = [torch.zeros((), device="cuda") for _ in self.momenta[0]]
        angles = torch.outer(torch.arange(seq_len), 500000.0 ** (-torch.arange(0, width.head, 2) / width.head)).cuda()
        self.cos, self.sin = (f(angles).repeat(sequences, 1)[:, None] for f in (torch.cos, torch.sin))
        self.anchor = torch.ones((), device="cuda", requires_grad=True)  # so that the embedding has a backward pass

    def matrix(self, rows, columns):
        self.weights.append(torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).mul_(0.02))
        self.gradients.append(torch.zeros(rows, columns, device="cuda"))
        return self.weights[-1], self.gradients[-1]

    def scale(self):
        self.norms.append(torch.ones(self.width.hidden, device="cuda", requires_grad=True))
        return self.norms[-1]

    def block(self, x, residual, layer):
        w, (attention_norm, qkv, out, mlp_norm, gate_up, down) = self.width, layer
        residual, h = add_norm(x, residual, attention_norm)
        h = Linear.apply(h, *qkv).unflatten(-1, (-1, w.head))
        q, k, v = h.split((w.heads, w.kv_heads, w.kv_heads), -2)
        q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
            q, k, v = (x.unflatten(0, (self.sequences, -1)).transpose(1, 2) for x in (q, k, v))
            h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=w.heads != w.kv_heads)
        h = Linear.apply(h.transpose(1, 2).flatten(0, 1).flatten(-2), *out)
        residual, h = add_norm(h, residual, mlp_norm)
        return Linear.apply(swiglu(Linear.apply(h, *gate_up)), *down), residual

    def loss(self, tokens, targets, scale, recompute):
        x = Embedding.apply(self.anchor, tokens, *self.embedding)
        residual = torch.zeros_like(x)
        for layer in self.layers:
            if recompute:
                x, residual = checkpoint(self.block, x, residual, layer, use_reentrant=False, preserve_rng_state=False)
            else:
                x, residual = self.block(x, residual, layer)
        return HeadAndLoss.apply(add_norm(x, residual, self.last_norm)[1], *self.head, targets, scale)

    @torch.no_grad()
    def update(self):
        gradients = [*self.gradients, *(p.grad for p in self.norms)]
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, torch.clamp(1.0 / (total + 1e-6), max=1.0))
        torch._foreach_add_(self.steps, 1)
        torch._fused_adamw_([*self.masters, *self.norms], gradients, *self.momenta, [], self.steps, amsgrad=False,
                            beta1=0.9, beta2=0.95, lr=1e-4, weight_decay=0.1, eps=1e-8, maximize=False)
        torch._foreach_copy_(self.weights, self.masters)
        torch._foreach_zero_(gradients)


def measure(case):
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    width = WIDTHS[case.width]
    model = Model(width, case.layers, case.sequences, case.seq_len)
    states = torch.cuda.memory_allocated()
    scale = torch.tensor(1 / (case.microbatches * case.sequences * case.seq_len), device="cuda")
    seconds, losses = [], []
    for _ in range(STEPS):
        batches = [torch.randint(width.vocabulary, (case.sequences, case.seq_len + 1), device="cuda")
                   for _ in range(case.microbatches)]
        torch.cuda.synchronize()
        started = time.perf_counter()
        total = 0.0
        for batch in batches:
            loss = model.loss(batch[:, :-1].flatten(), batch[:, 1:].flatten(), scale, case.recompute)
            loss.backward()
            total += loss.detach()
        model.update()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        losses.append(float(total))
    return {**width._asdict(), **case._asdict(), "step_seconds": statistics.median(seconds[WARMUP_STEPS:]),
            "state_bytes": states, "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(), "losses": [round(loss, 4) for loss in losses]}


def main():
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", file=sys.stderr)
    for case in CASES:
        try:
            print(json.dumps(measure(case)), flush=True)
        except RuntimeError as error:  # out of memory, for example: the other cases still run
            print(f"{case}: {str(error).splitlines()[0]}", file=sys.stderr)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
