"""Tests of the requests that orthant.ring_attention() refuses, on four ranks at once."""
import orthant
import torch
import torch.distributed as dist
from ring_attention_case import refused
from torch._C._distributed_c10d import FakeProcessGroup


def check_refusals(groups, full):
    group, rank, call = groups[4], dist.get_rank(), orthant.ring_attention
    q, k = torch.ones(2, 4, 6, 8), torch.ones(2, 2, 6, 8)
    documents = torch.zeros(24, dtype=torch.int64)
    with refused("zigzg", '"contiguous", "zigzag" or "stripe"', 'did you mean "zigzag"?'):
        call(q, k, k, group, placement="zigzg")
    with refused("ulysses = 3 must divide the 4 ranks", "set it to 1, 2 or 4"):
        call(q, k, k, group, ulysses=3)
    with refused("ulysses = 4 must be at most the 2 heads", "ulysses = 1"):
        call(k, k, k, group, ulysses=4)
    with refused("the 3 heads of k and v must divide the 4 heads of q", "1, 2, 4"):
        call(q, torch.ones(2, 3, 6, 8), torch.ones(2, 3, 6, 8), group)
    with refused("k must be on the CPU, but it is on meta", "k.cpu()"):
        call(q, k.to("meta"), k, group)
    with refused("v is torch.float64", ".to()"):
        call(q, k, k.double(), group)
    with refused("[batch, heads, tokens of this rank, head_dim]", "[4, 6, 8]"):
        call(q[0], k, k, group)
    with refused("equal batches", "[2, 4, 5, 8]"):
        call(q[:, :, :5], k, k, group)
    with refused("documents must be a tensor of int64 or int32", "torch.float32"):
        call(q, k, k, group, documents=documents.float())
    with refused("[tokens of the full sequence] or [2, tokens of the full sequence]", "[3, 24]"):
        call(q, k, k, group, documents=documents.expand(3, -1))
    with refused("each of the 24 tokens of the full sequence, but it has 6", "do not shard it"):
        call(q, k, k, group, documents=documents[:6])
    with refused("sequence length 4 must be at least 8", "4 ring ranks", "use at least 8 tokens"):
        call(q[:, :, :1], k[:, :, :1], k[:, :, :1], group)
    with refused("rank 0 must hold 5 of the 23 tokens", "but it holds 6", "orthant.shard_sequence(x, 0, 4"):
        own = slice(5 if rank == 1 else 6)
        call(q[:, :, own], k[:, :, own], k[:, :, own], group)
    with refused("the same scale", "rank 2 has 0.25"):
        call(q, k, k, group, scale=0.25 if rank == 2 else 0.5)
    with refused("the same heads of k and v", "rank 0 has 2 and rank 3 has 4"):
        call(q, *[q if rank == 3 else k] * 2, group)
    for places, others in (([3], [4]), ([2, 3], [1, 4])):  # the second have equal sums, also of their positions
        with refused("the same documents"):
            changed = documents.clone()
            changed[others if rank == 1 else places] = 1
            call(q, k, k, group, documents=changed)
    with refused("must be a process group that contains this rank", "new_group()"):
        groups_of_other = [dist.new_group([other]) for other in range(4)]
        call(q, k, k, groups_of_other[(rank + 1) % 4])
    with refused("rank = 4 must be from 0 to 3"):
        orthant.held_positions(4, 4, 16)
    with refused("rank 0 must hold 5 of the 9 tokens", "but it holds 4"):
        orthant.unshard_sequence([torch.ones(4), torch.ones(5)], dim=0)
    dist.Backend.register_backend("fake", lambda common, own: FakeProcessGroup._create_internal(
        common.group_rank, common.group_size, own), extended_api=True, devices=["cpu"])
    with refused("must be gloo, but it is fake", 'backend="gloo"'):
        call(q, k, k, dist.new_group([0, 1, 2, 3], backend="fake"))
    assert call(q, k, k).shape == q.shape  # the default group; the ways out work
    for ulysses in (1, 2, 4):
        call(q, k, k, group, ulysses=ulysses)
    return "bad requests are refused with the law, the numbers and a way out"
