#!/usr/bin/env python3
"""The PyTorch peer of benchmarks/zero/peers.py: the training step of ddp.py with FSDP2 (fully_shard) over Gloo.

As in torchtitan, each block is a unit of fully_shard, the embedding is another, and the last norm and the head are
another, which stays gathered after forward. Tied embeddings belong to the root's unit. --compile model compiles each
block before fully_shard, and the loss. bf16 is by MixedPrecisionPolicy: bf16 parameters, float32 reductions and sharded
float32 masters. AdamW (fused) works on the local shards, and the norm takes one all-reduce, because DTensor's own
implementations of both are slower. It writes one JSON line per step to --metrics, and prints one at the end.

  torchrun --nproc-per-node 2 benchmarks/peers/zero.py --reshard_after_forward true --steps 20
"""
import ddp  # from this folder
import steps
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def arguments():
    p = ddp.parser()
    p.add_argument("--reshard_after_forward", choices=("false", "true"), default="true",
                   help="true: free each block's gathered weights after its forward")
    p.add_argument("--reduce", choices=("microbatch", "step"), default="microbatch",
                   help="microbatch: reduce gradients after each backward into shards; step: sum unsharded gradients, "
                        "and reduce them after the last backward. Weights that forward keeps then stay until it, too")
    return p.parse_args()


def shard(model, a):
    reshard = a.reshard_after_forward == "true"
    types = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if a.dtype == "bfloat16_master" else {}
    policy = MixedPrecisionPolicy(**types)
    for block in model.blocks:
        if a.compile == "model":
            block.compile(fullgraph=True)
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard)
    if a.compile == "model":
        model.loss = torch.compile(model.loss)
    if a.tie_word_embeddings == "false":
        fully_shard(model.embedding, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard([model.norm, model.head], mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)


class Trainer:
    """The model, the optimizer and the training step of one rank, on its shard of the batch's sequences."""

    def __init__(self, a, rank, ranks):
        self.a = a
        torch.manual_seed(1234)
        self.model = ddp.Llama(a)
        shard(self.model, a)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW([p.detach().to_local() for p in self.parameters], lr=3e-4, betas=(0.9, 0.95),
                                           weight_decay=0.1, fused=True)
        self.local = self.optimizer.param_groups[0]["params"]
        generator = torch.Generator().manual_seed(0)
        data = torch.randint(a.vocab_size, (8, a.global_batch_size, a.seq_len + 1), generator=generator)
        self.data = data.chunk(ranks, 1)[rank]
        self.scale = ranks / (a.global_batch_size * a.seq_len)  # because fully_shard averages gradients over ranks

    def step(self, index):
        a, total = self.a, 0.0
        batches = self.data[index % len(self.data)].split(a.local_batch_size)
        for m, batch in enumerate(batches):
            if a.reduce == "step":
                last = m + 1 == len(batches)
                self.model.set_is_last_backward(last)
                self.model.set_requires_gradient_sync(last)
                if a.reshard_after_forward == "false":
                    self.model.set_reshard_after_backward(last)
            loss = self.model(batch[:, :-1], batch[:, 1:].contiguous()) * self.scale
            loss.backward()
            total += loss.detach()
        self.update()
        return total

    @torch.no_grad()
    def update(self):
        gradients = [p.grad.to_local() for p in self.parameters]
        square = torch.stack(torch._foreach_norm(gradients)).square().sum()
        dist.all_reduce(square)
        torch._foreach_mul_(gradients, torch.clamp(1.0 / (square.sqrt() + 1e-6), max=1.0))
        for local, parameter, gradient in zip(self.local, self.parameters, gradients):
            local.grad, parameter.grad = gradient, None
        self.optimizer.step()
        for local in self.local:
            local.grad = None


if __name__ == "__main__":
    a = arguments()
    steps.run(a, Trainer, {"reshard_after_forward": a.reshard_after_forward, "reduce": a.reduce})
