#!/usr/bin/env python3
"""The PyTorch peer of benchmarks/tensor/peers.py: the training step of ddp.py with PyTorch's tensor parallelism.

It uses DTensor's parallelize_module over Gloo: column- and row-parallel linears, with the embedding and the head
sharded over the vocabulary. SequenceParallel between the products and loss_parallel are options. The other ranks use
DistributedDataParallel or fully_shard. Query, key and value are one product, gate and up another; both are stored in
groups, so that every shard has complete groups. AdamW (fused) works on the local shards, and the norm takes one
all-reduce, because DTensor's own implementations of both are slower. It writes one JSON line per step to --metrics, and
prints one at the end.

  torchrun --nproc-per-node 2 benchmarks/peers/tensor.py --columns 2 --sequence 1 --steps 20
"""
import contextlib

import ddp  # from this folder
import steps
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel


def arguments():
    p = ddp.parser()
    p.add_argument("--columns", type=int, default=1, help="number of ranks over which each matrix is sharded")
    p.add_argument("--others", choices=("ddp", "fsdp"), default="ddp", help="parallelism of the other ranks")
    p.add_argument("--sequence", type=int, default=0,
                   help="1: shard the tokens between the products (sequence parallelism)")
    p.add_argument("--loss", choices=("gathered", "parallel"), default="parallel",
                   help="compute the loss from full logits, or from their shards")
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.groups, self.head_dim = a.num_key_value_heads, a.hidden_size // a.num_attention_heads
        self.shared = a.num_attention_heads // self.groups  # query heads per group
        self.norm_1, self.norm_2 = ddp.RMSNorm(a.hidden_size), ddp.RMSNorm(a.hidden_size)
        self.qkv = nn.Linear(a.hidden_size, a.hidden_size + 2 * self.groups * self.head_dim, bias=False)
        self.out = nn.Linear(a.hidden_size, a.hidden_size, bias=False)
        self.gate_up = nn.Linear(a.hidden_size, 2 * a.intermediate_size, bias=False)
        self.down = nn.Linear(a.intermediate_size, a.hidden_size, bias=False)

    def attend(self, x, cos, sin):
        qkv = self.qkv(x)
        batch, tokens, _ = qkv.shape
        groups = qkv.view(batch, tokens, -1, self.shared + 2, self.head_dim)
        q = groups[:, :, :, :self.shared].reshape(batch, tokens, -1, self.head_dim).transpose(1, 2)
        k, v = (groups[:, :, :, self.shared + i].transpose(1, 2) for i in range(2))
        y = F.scaled_dot_product_attention(ddp.rotate(q, cos, sin), ddp.rotate(k, cos, sin), v, is_causal=True,
                                           enable_gqa=self.shared != 1)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1))

    def feed(self, x):
        both = self.gate_up(x)
        gate, up = both.view(*both.shape[:2], -1, 2, self.down.in_features // self.groups).unbind(-2)
        return self.down((F.silu(gate) * up).flatten(2))

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm_1(x), cos, sin)
        return x + self.feed(self.norm_2(x))


class Llama(ddp.Llama):
    """ddp.Llama with the blocks of this file. The logits may be a DTensor."""

    def __init__(self, a):
        super().__init__(a)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.num_hidden_layers))
        for parameter in self.blocks.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def parallelize(model, mesh, a):
    between = Shard(1) if a.sequence else Replicate()  # layout of the residual stream, [batch, tokens, hidden]
    column, row = ColwiseParallel(input_layouts=between), RowwiseParallel(output_layouts=between)
    vocabulary = a.loss == "parallel"
    plan = {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1) if vocabulary else Replicate(),
                                    use_local_output=not vocabulary)}
    for i in range(a.num_hidden_layers):
        plan |= {f"blocks.{i}.qkv": column, f"blocks.{i}.out": row, f"blocks.{i}.gate_up": column,
                 f"blocks.{i}.down": row}
        if a.sequence:
            plan |= {f"blocks.{i}.norm_1": SequenceParallel(use_local_output=True),
                     f"blocks.{i}.norm_2": SequenceParallel(use_local_output=True)}
    if a.sequence:
        plan["norm"] = SequenceParallel(use_local_output=True)
    parallelize_module(model, mesh, plan)


class Trainer:
    """The model, the optimizer and the training step of one rank, on its shard of the batch's sequences."""

    def __init__(self, a, rank, ranks):
        self.a, self.copies = a, ranks // a.columns
        torch.manual_seed(1234)
        model, self.group = Llama(a), None
        if ranks > 1:
            mesh = init_device_mesh("cpu", (self.copies, a.columns), mesh_dim_names=("copies", "columns"))
            self.group = mesh["columns"].get_group()
            if a.columns > 1:
                parallelize(model, mesh["columns"], a)
        self.whole = self.copies > 1 and a.others == "fsdp"  # parameters are also sharded over the data ranks
        if self.whole:
            for block in model.blocks:
                fully_shard(block, mesh=mesh["copies"])
            fully_shard(model, mesh=mesh["copies"])
        self.parameters = list(model.parameters())
        if a.compile == "model":
            model = torch.compile(model)
        if self.copies > 1 and a.others == "ddp":
            _pre_dp_module_transform(model)
            model = DistributedDataParallel(model, process_group=mesh["copies"].get_group(),
                                            gradient_as_bucket_view=True)
            self.parameters = list(model.parameters())
        self.model = model
        self.local = [p.to_local() if isinstance(p, DTensor) else p for p in self.parameters]
        self.optimizer = torch.optim.AdamW([p.detach() for p in self.local], lr=3e-4, betas=(0.9, 0.95),
                                           weight_decay=0.1, fused=True)
        self.local = self.optimizer.param_groups[0]["params"]
        generator = torch.Generator().manual_seed(0)
        data = torch.randint(a.vocab_size, (8, a.global_batch_size, a.seq_len + 1), generator=generator)
        self.data = data.chunk(self.copies, 1)[rank // a.columns]

    def gradients(self):
        """Returns the gradients of the local shards. A replicated parameter's gradient that DTensor left as a partial
        sum is summed over the columns, all of them in one all-reduce."""
        found, partial = [], []
        for parameter in self.parameters:
            gradient, parameter.grad = parameter.grad, None
            if isinstance(gradient, DTensor):
                unsummed = gradient.placements == (Partial(),) and parameter.placements == (Replicate(),)
                gradient = (gradient if unsummed else gradient.redistribute(placements=parameter.placements)).to_local()
                if unsummed:
                    partial.append(gradient)
            found.append(gradient)
        if partial:
            flat = torch.cat([gradient.flatten() for gradient in partial])
            dist.all_reduce(flat, group=self.group)
            torch._foreach_copy_(partial, [part.view_as(g) for part, g in
                                           zip(flat.split([g.numel() for g in partial]), partial)])
        return found

    def norm(self, gradients):
        """Returns the norm of all gradients of the model. Squares of sharded parameters are summed over the ranks that
        hold the other shards."""
        squares = torch.stack(torch._foreach_norm(gradients)).square()
        cut = torch.tensor([p.dim() == 2 for p in self.local])
        shared, parts = squares[~cut].sum(), squares[cut].sum()
        if self.whole:  # fully_shard also shards the norms' weights, which are the same on every column
            parts, shared = parts + shared / self.a.columns, torch.zeros(())
        if self.whole or self.a.columns > 1:
            dist.all_reduce(parts, group=None if self.whole else self.group)
        return (shared + parts).sqrt()

    def step(self, index):
        """Makes one optimizer step. Gradients are averaged over data ranks, so the loss is scaled by the number of data
        ranks over the number of global tokens."""
        a, batch = self.a, self.data[index % 8]
        with loss_parallel() if a.columns > 1 and a.loss == "parallel" else contextlib.nullcontext():
            loss = self.model(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
            loss = loss * (self.copies / (a.global_batch_size * a.seq_len))
            loss.backward()
        with torch.no_grad():
            gradients = self.gradients()
            torch._foreach_mul_(gradients, torch.clamp(1.0 / (self.norm(gradients) + 1e-6), max=1.0))
            for p, gradient in zip(self.local, gradients):
                p.grad = gradient
            self.optimizer.step()
        loss = loss.detach()
        return loss.to_local() if isinstance(loss, DTensor) else loss


if __name__ == "__main__":
    a = arguments()
    steps.run(a, Trainer, {"columns": a.columns})
