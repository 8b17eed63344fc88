"""The operators orthant::ring_attention_forward and orthant::ring_attention_backward of PyTorch, in float32 or float64.

Ulysses first exchanges tokens for heads (Jacobs et al. 2023, arXiv 2309.14509). Keys and values then travel around the
ring (Liu et al. 2023, arXiv 2310.01889); both together are USP (Fang and Zhao 2024, arXiv 2405.07719). The C++ engine
does the same in src/parallel/sequence/. Import this module only if torch can be imported.

Shapes: B batch, H query heads, K key heads, T queries, S keys, D head size.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from ._errors import ConfigError
from ._sequence import PLACEMENTS, all_positions, head_shard, ring_positions

# Message tags. Blocks and sums travel between the same ranks at the same time.
BLOCK, SUM, HEADS = 101, 102, 103


def find_group(name: str) -> Any:
    """Returns the group with this name. Raises ConfigError if its backend for CPU tensors is not Gloo."""
    group = _resolve_process_group(name)
    try:
        backend = group._get_backend(torch.device("cpu")).name()
    except RuntimeError:  # it has none for CPU tensors
        backend = dist.get_backend(group)
    if backend != "gloo":
        raise ConfigError(f"the group's backend for CPU tensors must be gloo, but it is {backend}; make a group with "
                          'torch.distributed.new_group(ranks, backend="gloo")')
    return group


def start_exchange(group: Any, leaving: list[tuple[Tensor, int]], arriving: list[tuple[Tensor, int]],
                   tag: int) -> list[Any]:
    """Starts to send and receive (contiguous tensor, rank in the group) pairs. wait() of the results ends it."""
    messages = [dist.P2POp(dist.irecv, x, group=group, tag=tag, group_peer=rank) for x, rank in arriving]
    messages += [dist.P2POp(dist.isend, x, group=group, tag=tag, group_peer=rank) for x, rank in leaving]
    return dist.batch_isend_irecv(messages) if messages else []


def finish(works: list[Any]) -> None:
    for work in works:
        work.wait()


def compare_requests(group: Any, request: dict[str, float]) -> list[dict[str, float]]:
    """Returns the requests of all ranks. Raises ConfigError on every rank if they differ, except in their tokens."""
    own = torch.tensor(list(request.values()), dtype=torch.float64)
    gathered = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(gathered, own, group=group)
    requests = [dict(zip(request, row.tolist())) for row in gathered]
    for rank, other in enumerate(requests):
        for name, value in other.items():
            if name != "tokens" and value != requests[0][name]:
                raise ConfigError(f"all ranks of the group must call ring_attention() with the same {name}, but rank 0 "
                                  f"has {requests[0][name]:.17g} and rank {rank} has {value:.17g}")
    return requests


def checksum(documents: Optional[Tensor]) -> int:
    """Returns a number below 2^52 that other values, or the same in another order, almost certainly do not have."""
    if documents is None:
        return 0
    factors = torch.arange(1, documents.numel() + 1) * 6364136223846793005  # modulo 2^64, as the next product
    factors = (factors ^ (factors >> 29)) * 1442695040888963407  # no linear function of the position
    return int(((documents.reshape(-1).long() + 1) * factors).sum()) % 2**52 or 1


@dataclass(frozen=True)
class Mesh:
    """The part of this rank: its coordinates, and the tokens and heads of all ranks that it exchanges with."""

    group: Any
    ulysses: int
    ring: int
    rank: int
    #: Positions of the tokens of each ring rank.
    positions: list[Tensor]
    #: Number of tokens that each rank of this Ulysses group holds outside attention.
    tokens: list[int]
    #: Query heads of each rank of this Ulysses group, and the key heads that they read.
    heads: list[tuple[range, range]]
    #: For each own query head, the index of its key head among the own key heads.
    key_of_query: Tensor
    causal: bool
    #: Number of each token's document, [1 or B, tokens of the full sequence]; None: a single document.
    documents: Optional[Tensor]

    @property
    def own(self) -> int:
        """The coordinate in the Ulysses group."""
        return self.rank % self.ulysses

    @property
    def ring_rank(self) -> int:
        return self.rank // self.ulysses

    def source(self, step: int) -> int:
        """Returns the ring rank whose block is here at a step, because blocks go to the next ring rank."""
        return (self.ring_rank - step) % self.ring

    def pass_on(self, leaving: Tensor, arriving: Tensor, tag: int) -> list[Any]:
        """Starts to send to the next ring rank, and to receive from the one before."""
        return start_exchange(self.group, [(leaving, self.source(-1) * self.ulysses + self.own)],
                              [(arriving, self.source(1) * self.ulysses + self.own)], tag)

    def buffer(self, source: int, own_block: Tensor) -> Tensor:
        """Returns memory for the block, or for its gradients, of a ring rank."""
        shape = list(own_block.shape)
        shape[-2] = len(self.positions[source])
        return own_block.new_empty(shape)

    def visible(self, source: int) -> Optional[Tensor]:
        """Returns which keys of a ring rank each own query attends to: [1 or B, 1, T, S]; None if there are none."""
        queries, keys = self.positions[self.ring_rank], self.positions[source]
        seen = keys <= queries[:, None] if self.causal else keys.new_ones(len(queries), len(keys), dtype=torch.bool)
        if self.documents is not None:
            seen = seen & (self.documents[:, queries, None] == self.documents[:, None, keys])
        return seen.reshape(-1, 1, *seen.shape[-2:]) if seen.any() else None


def make_mesh(q: Tensor, k: Tensor, documents: Optional[Tensor], group_name: str, causal: bool, ulysses: int,
              placement: str, scale: float) -> Mesh:
    """Compares the request with those of the other ranks, and returns this rank's part."""
    group = find_group(group_name)
    requests = compare_requests(group, {
        "batch": q.shape[0], "heads of q": q.shape[1], "heads of k and v": k.shape[1], "head_dim": q.shape[3],
        "tokens": q.shape[2], "bytes of a partial result": q.element_size(), "causal": causal, "ulysses": ulysses,
        "placement (0: contiguous, 1: zigzag, 2: stripe)": PLACEMENTS.index(placement), "scale": scale,
        "documents (checksum; 0: none)": checksum(documents)})
    lengths = [int(request["tokens"]) for request in requests]
    all_positions(lengths, ulysses, placement)  # checks the lengths
    seq_len, rank, ring = sum(lengths), group.rank(), group.size() // ulysses
    if documents is not None and documents.shape[-1] != seq_len:
        raise ConfigError(f"documents must have the number of a document for each of the {seq_len} tokens of the full "
                          f"sequence, but it has {documents.shape[-1]}; do not shard it")
    heads = [head_shard(q.shape[1], k.shape[1], ulysses, u) for u in range(ulysses)]
    queries, keys = heads[rank % ulysses]
    begin = rank - rank % ulysses
    return Mesh(group, ulysses, ring, rank,
                positions=[torch.tensor(ring_positions(r, ring, seq_len, placement)) for r in range(ring)],
                tokens=lengths[begin:begin + ulysses], heads=heads,
                key_of_query=torch.tensor([head // (q.shape[1] // k.shape[1]) - keys.start for head in queries]),
                causal=causal, documents=None if documents is None else documents.reshape(-1, seq_len))


def exchange_all(mesh: Mesh, leaving: list[Tensor], arriving: list[Tensor]) -> list[Tensor]:
    """Sends one tensor to each rank of the Ulysses group, and returns what arrives."""
    first = mesh.rank - mesh.own
    others = [u for u in range(mesh.ulysses) if u != mesh.own]
    finish(start_exchange(mesh.group, [(leaving[u], first + u) for u in others],
                          [(arriving[u], first + u) for u in others], HEADS))
    arriving[mesh.own] = leaving[mesh.own]
    return arriving


def to_heads(mesh: Mesh, x: Tensor, kind: int) -> Tensor:
    """[B, all heads, own tokens, D] -> [B, own heads, tokens of the Ulysses group, D]. kind: 0 query, 1 key heads."""
    ranges = [heads[kind] for heads in mesh.heads]
    leaving = [x[:, r.start:r.stop].contiguous() for r in ranges]
    arriving = [x.new_empty(x.shape[0], len(ranges[mesh.own]), tokens, x.shape[3]) for tokens in mesh.tokens]
    return torch.cat(exchange_all(mesh, leaving, arriving), 2)


def to_tokens(mesh: Mesh, x: Tensor, kind: int) -> Tensor:
    """[B, own heads, tokens of the group, D] -> [B, all heads, own tokens, D]. Sums a head that several ranks have."""
    ranges = [heads[kind] for heads in mesh.heads]
    leaving = [part.contiguous() for part in x.split(mesh.tokens, 2)]
    arriving = [x.new_empty(x.shape[0], len(r), mesh.tokens[mesh.own], x.shape[3]) for r in ranges]
    total = x.new_zeros(x.shape[0], ranges[-1].stop, mesh.tokens[mesh.own], x.shape[3])
    for r, part in zip(ranges, exchange_all(mesh, leaving, arriving)):
        total[:, r.start:r.stop] += part
    return total


def blocks(mesh: Mesh, own_block: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yields (ring rank, its block), the own block first. The next block arrives while the caller works on one."""
    block = own_block
    for step in range(mesh.ring):
        arriving, works = block, []
        if step + 1 < mesh.ring:
            arriving = mesh.buffer(mesh.source(step + 1), own_block)
            works = mesh.pass_on(block, arriving, BLOCK)
        yield mesh.source(step), block
        finish(works)
        block = arriving


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Returns attention to the keys of one block, and the log-sum-exp of its scores; 0 and -inf for a query without
    keys."""
    scores = (q @ k.mT * scale).masked_fill(~visible, -torch.inf)
    top = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).min)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    return weights @ v / total.clamp_min(1), (top + total.log()).squeeze(-1)  # total is at least 1 if a key is visible


def merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns attention to the keys of two blocks from (output, log-sum-exp) of each. In the first, every query has a
    key."""
    lse = torch.logaddexp(one[1], other[1])
    share, other_share = (torch.exp(part - lse).unsqueeze(-1) for _, part in (one, other))
    return one[0] * share + other[0] * other_share, lse


def attend_backward(dout: Tensor, delta: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, visible: Tensor,
                    scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns one block's summands of dq, dk and dv. `lse` and delta = rowsum(dout * out) - dlse are those of all
    blocks."""
    scores = (q @ k.mT * scale).masked_fill(~visible, -torch.inf)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    dscores = weights * (dout @ v.mT - delta.unsqueeze(-1)) * scale
    return dscores @ k, dscores.mT @ q, weights.mT @ dout


# torch.library.custom_op() would do the same, but imports the compiler, which takes seconds, at the first call.
FORWARD, BACKWARD = "orthant::ring_attention_forward", "orthant::ring_attention_backward"
SETTINGS = "Tensor? documents, str group_name, bool causal, int ulysses, str placement, float scale"
torch.library.define(FORWARD, f"(Tensor q, Tensor k, Tensor v, {SETTINGS}) -> (Tensor out, Tensor lse)",
                     tags=torch.Tag.pt2_compliant_tag)
torch.library.define(BACKWARD, f"(Tensor dout, Tensor dlse, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, "
                     f"{SETTINGS}) -> (Tensor dq, Tensor dk, Tensor dv)", tags=torch.Tag.pt2_compliant_tag)


@torch.library.impl(FORWARD, "CPU")
def ring_attention_forward(q: Tensor, k: Tensor, v: Tensor, documents: Optional[Tensor], group_name: str, causal: bool,
                           ulysses: int, placement: str, scale: float) -> tuple[Tensor, Tensor]:
    mesh = make_mesh(q, k, documents, group_name, causal, ulysses, placement, scale)
    queries = to_heads(mesh, q, 0)
    result: Any = None
    for source, block in blocks(mesh, torch.stack([to_heads(mesh, x, 1) for x in (k, v)])):
        visible = mesh.visible(source)
        if visible is not None:
            keys, values = block.index_select(2, mesh.key_of_query)
            part = attend(queries, keys, values, visible, scale)
            result = part if result is None else merge(result, part)  # the own block, with the own key, comes first
    return to_tokens(mesh, result[0], 0), to_tokens(mesh, result[1].unsqueeze(-1), 0).squeeze(-1)


@torch.library.impl(BACKWARD, "CPU")
def ring_attention_backward(dout: Tensor, dlse: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor,
                            documents: Optional[Tensor], group_name: str, causal: bool, ulysses: int, placement: str,
                            scale: float) -> tuple[Tensor, Tensor, Tensor]:
    mesh = make_mesh(q, k, documents, group_name, causal, ulysses, placement, scale)
    # Each rank computes a summand of the gradient of each block. The sum starts at the rank after the block's owner,
    # follows the block one step later, and ends at the owner, which adds its own summand last. This order is fixed.
    delta = to_heads(mesh, ((dout * out).sum(-1) - dlse).unsqueeze(-1), 0).squeeze(-1)
    log_sum_exp = to_heads(mesh, lse.unsqueeze(-1), 0).squeeze(-1)
    dout, queries = to_heads(mesh, dout, 0), to_heads(mesh, q, 0)
    own_block = torch.stack([to_heads(mesh, x, 1) for x in (k, v)])
    dq, own_sum, arriving = torch.zeros_like(queries), torch.zeros_like(own_block), None
    works: list[Any] = []
    for step, (source, block) in enumerate(blocks(mesh, own_block)):
        finish(works)
        total = own_sum
        if step > 0:
            total = mesh.buffer(source, own_block).zero_() if arriving is None else arriving
        visible = mesh.visible(source)
        if visible is not None:
            keys, values = block.index_select(2, mesh.key_of_query)
            dq_part, *dkv_part = attend_backward(dout, delta, log_sum_exp, queries, keys, values, visible, scale)
            dq += dq_part
            total.index_add_(2, mesh.key_of_query, torch.stack(dkv_part))
        if step > 0:
            arriving = mesh.buffer(mesh.source(step + 1), own_block)
            works = mesh.pass_on(total, arriving, SUM)
    finish(works)
    dk, dv = own_sum if arriving is None else arriving + own_sum
    return to_tokens(mesh, dq, 0), to_tokens(mesh, dk, 1), to_tokens(mesh, dv, 1)


@torch.library.register_fake(FORWARD)
def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1])


@torch.library.register_fake(BACKWARD)
def _backward_shapes(dout: Tensor, dlse: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor,
                     *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, documents, *ctx.settings = inputs
    ctx.save_for_backward(*output, q, k, v, documents)


def _gradients(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Optional[Tensor], ...]:
    out, lse, q, k, v, documents = ctx.saved_tensors
    gradients = torch.ops.orthant.ring_attention_backward(dout, dlse, out, lse, q, k, v, documents, *ctx.settings)
    return (*gradients, *[None] * (1 + len(ctx.settings)))


torch.library.register_autograd(FORWARD, _gradients, setup_context=_save)


def _refuse(ctx: Any, *gradients: Tensor) -> None:
    raise ConfigError("ring_attention() has only first derivatives; compute second ones from the definition of "
                      "attention on one device, or the first ones without create_graph=True")


torch.library.register_autograd(BACKWARD, _refuse)
