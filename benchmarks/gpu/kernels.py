#!/usr/bin/env python3
"""Measures the kernels of one GPU for a hardware file (docs/hardware.md): matrix products, attention, kernels that only
read and write memory, and the memory that a process takes. It needs PyTorch with CUDA, and no other package.

Each row of the output CSV is one kernel: its kind, its shape, its share of the peak rate, and its seconds. Rows of
products and attention have the form that tools/fit_kernels.py reads. Products are those of LLaMA-style models of four
widths with tensor parallelism of degree 1 to 8, in random order, so that similar products do not follow each other.
Operands are random, and take turns so that the cache does not hold them; those of backward passes and of AdamW do not
take turns, so that the cache may hold the smallest ones. Kernels are queued behind a pause, so that the time of the
launches is not measured. Attention is causal; sdp is the implementation of cuDNN, flash that of FlashAttention 2.
Memory rows have bytes/s instead of a share, process rows bytes.

  python3 benchmarks/gpu/kernels.py --peak 989.4e12 [--kinds products,attention] [--products 140] > kernels.csv
"""
import argparse
import csv
import itertools
import math
import random
import os
import sys

import torch
import torch.nn.functional as F
from operations import add_norm, add_product, swiglu  # from this folder
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import names_of

# hidden size, size of the MLP, heads, heads of keys and values, size of a head
WIDTHS = ((2048, 8192, 32, 8, 64), (4096, 14336, 32, 8, 128), (8192, 28672, 64, 8, 128), (16384, 53248, 128, 8, 128))
VOCABULARY = 128256
KERNEL_SECONDS = 0.04  # for which a kernel is repeated
ROTATED_BYTES = 200e6  # operands of the calls that take turns: several times the cache


def seconds_of(call, operands, launch_seconds=10e-6):
    """Returns the mean time of call(*operands[i]) on the device, with the operands in turns. A launch takes the host at
    most launch_seconds."""
    def timed(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(2e9 * launch_seconds * count))  # clock cycles, at most 2 GHz
        start.record()
        for index in range(count):
            call(*operands[index % len(operands)])
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / count

    timed(len(operands))
    return timed(max(3, min(300, math.ceil(KERNEL_SECONDS / timed(3)))))


def operand_sets(make, byte_count):
    return [make() for _ in range(max(2, min(32, math.ceil(ROTATED_BYTES / byte_count))))]


def random_tensor(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def product_shapes(count):
    """Returns (m, k, n): tokens, and the input and output size of a linear layer on one rank."""
    shapes = set()
    for (hidden, mlp, heads, kv_heads, head), degree, tokens in itertools.product(
            WIDTHS, (1, 2, 4, 8), (512, 1024, 2048, 4096, 8192, 16384)):
        for inputs, outputs in ((hidden, (heads + 2 * kv_heads) * head // degree), (heads * head // degree, hidden),
                                (hidden, 2 * mlp // degree), (mlp // degree, hidden), (hidden, VOCABULARY // degree)):
            if 1e10 <= 2 * tokens * inputs * outputs <= 1.5e13:
                shapes.add((tokens, inputs, outputs))
    return random.Random(0).sample(sorted(shapes), min(count, len(shapes)))


def products(count):
    """Yields rows of the three products of each layer: forward, gradient of the input, gradient of the weight."""
    for tokens, inputs, outputs in product_shapes(count):
        x, y = (tokens, inputs), (tokens, outputs)
        byte_count = 2 * (tokens * inputs + inputs * outputs + tokens * outputs)
        work = 2 * tokens * inputs * outputs

        def row(m, k, n, layout, dtype, seconds):
            shape = f"b=1;m={m};k={k};n={n};layout={layout};accumulate={dtype == 'fp32'};out_dtype={dtype}"
            return "matmul", shape, work / seconds, seconds

        forward = operand_sets(lambda: (random_tensor(*x), random_tensor(outputs, inputs)), byte_count)
        yield row(tokens, inputs, outputs, "TN", "bf16", seconds_of(lambda a, w: torch.mm(a, w.t()), forward))
        del forward
        backward = operand_sets(lambda: (random_tensor(*y), random_tensor(outputs, inputs)), byte_count)
        yield row(tokens, outputs, inputs, "NN", "bf16", seconds_of(torch.mm, backward))
        del backward
        weight = operand_sets(lambda: (random_tensor(*y), random_tensor(*x),
                                       random_tensor(outputs, inputs, dtype=torch.float32)),
                              byte_count + 2 * inputs * outputs)
        yield row(outputs, tokens, inputs, "NT", "fp32", seconds_of(add_product, weight))
        del weight


def attention_shapes():
    """Returns (sequences, tokens, heads, heads of keys and values, size of a head)."""
    for tokens in (1024, 2048, 4096, 8192, 16384, 32768):
        sequences = max(1, 8192 // tokens)
        yield from ((sequences, tokens, 32, 8, 128), (sequences, tokens, 8, 1, 128), (sequences, tokens, 32, 8, 64))
    yield from ((1, 65536, 16, 4, 128), (1, 65536, 4, 1, 128), (1, 131072, 8, 2, 128), (1, 212992, 4, 1, 128),
                (4, 2048, 8, 1, 256), (2, 4096, 8, 1, 256), (1, 8192, 8, 1, 256), (1, 4096, 64, 8, 128),
                (1, 8192, 64, 8, 128), (1, 2048, 32, 8, 128), (1, 4096, 16, 2, 128))


def attention():
    """Yields rows of attention, forward and backward, of both implementations."""
    for sequences, tokens, heads, kv_heads, head in attention_shapes():
        for name, backend in (("sdp", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            def make(count, grad):
                return random_tensor(sequences, tokens, count, head).transpose(1, 2).requires_grad_(grad)

            def forward(q, k, v):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

            work = 4 * sequences * heads * tokens**2 * head
            shape = (f"batch={sequences};seq_len={tokens};head_num={heads};kv_head_num={kv_heads};qk_head_dim={head};"
                     f"v_head_dim={head}")
            try:
                with sdpa_kernel(backend):
                    operands = [tuple(make(n, False) for n in (heads, kv_heads, kv_heads)) for _ in range(2)]
                    seconds = seconds_of(forward, operands)
                    yield name + "_fwd", shape, work / seconds, seconds
                    inputs = tuple(make(n, True) for n in (heads, kv_heads, kv_heads))
                    output, gradient = forward(*inputs), make(heads, False)
                    seconds = seconds_of(lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True), [()])
                    yield name + "_bwd", shape, 2.5 * work / seconds, seconds
            except RuntimeError as error:
                print(f"{name}, {shape}: {str(error).splitlines()[0]}", file=sys.stderr)


def memory_kernels():
    """Yields rows of kernels whose time is that of memory: share_of_peak is in bytes/s here."""
    def row(name, byte_count, call, operands):
        seconds = seconds_of(call, operands, launch_seconds=200e-6)
        return "memory", f"kernel={name};bytes={byte_count}", byte_count / seconds, seconds

    for size in (2**18, 2**20, 2**22, 2**24, 2**26, 2**28, 2**30):
        operands = operand_sets(lambda: (torch.empty(size, device="cuda", dtype=torch.uint8),
                                         torch.ones(size, device="cuda", dtype=torch.uint8)), 2 * size)
        yield row("copy", 2 * size, lambda out, x: out.copy_(x), operands)
        del operands
    for tokens, hidden in itertools.product((256, 1024, 4096, 16384), (2048, 4096, 8192)):
        size = 2 * tokens * hidden
        operands = operand_sets(lambda: (random_tensor(tokens, hidden), random_tensor(tokens, hidden),
                                         torch.ones(hidden, device="cuda")), 4 * size)
        yield row("add_norm", 4 * size, add_norm, operands)
        operands = operand_sets(lambda: (random_tensor(tokens, 2 * hidden),), 3 * size)
        yield row("swiglu", 3 * size, swiglu, operands)
        x, dy = random_tensor(tokens, 2 * hidden).requires_grad_(), random_tensor(tokens, hidden)
        y = swiglu(x)
        yield row("swiglu_backward", 5 * size, lambda: torch.autograd.grad(y, x, dy, retain_graph=True), [()])
    for size in (2**20, 2**24, 2**28):
        operands = [[torch.rand(size, device="cuda")] for _ in range(4)]
        step = torch.ones((), device="cuda")
        yield row("adamw", 28 * size, lambda: torch._fused_adamw_(
            *operands, [], [step], amsgrad=False, beta1=0.9, beta2=0.95, lr=1e-4, weight_decay=0.1, eps=1e-8,
            maximize=False), [()])
        del operands


def process_memory():
    """Yields rows of the memory of the device that is no tensor's, in bytes: before and after the first kernels, and
    what communicators of one rank add."""
    def used():
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    torch.cuda.init()
    yield "process", "first use of the device", used(), 0
    torch.mm(random_tensor(512, 512), random_tensor(512, 512))
    q = random_tensor(1, 8, 512, 128).requires_grad_()
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    torch.cuda.synchronize()
    before = used()
    yield "process", "with product and attention", before, 0
    dist = torch.distributed
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    for name in ("first communicator of one rank", "second communicator of one rank"):
        dist.all_reduce(torch.ones(1, device="cuda"), group=dist.new_group([0]))
        torch.cuda.synchronize()
        yield "process", name, used() - before, 0
        before = used()
    dist.destroy_process_group()


KINDS = {"process": lambda a: process_memory(), "products": lambda a: products(a.products),
         "attention": lambda a: attention(), "memory": lambda a: memory_kernels()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--peak", type=float, required=True, help="FLOP/s in bfloat16, of the data sheet")
    p.add_argument("--kinds", type=names_of(KINDS), default=",".join(KINDS))
    p.add_argument("--products", type=int, default=140, help="number of layer shapes, with three products each")
    a = p.parse_args()
    torch.manual_seed(0)
    out = csv.writer(sys.stdout)
    out.writerow(["kind", "shape", "share_of_peak", "seconds"])
    for name in a.kinds:
        for kind, shape, rate, seconds in KINDS[name](a):
            share = f"{rate / a.peak:.4f}" if kind not in ("memory", "process") else f"{rate:.4e}"
            out.writerow([kind, shape, share, f"{seconds:.4e}"])
            sys.stdout.flush()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"cuDNN {torch.backends.cudnn.version()}", file=sys.stderr)


if __name__ == "__main__":
    main()
