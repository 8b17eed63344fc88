"""The parts of a sequence that ranks hold: the laws of src/parallel/sequence/placement_plan.h and heads_plan.h."""
from __future__ import annotations

import difflib
import operator
from collections.abc import Sequence
from typing import Any

from ._errors import ConfigError

PLACEMENTS = ("contiguous", "zigzag", "stripe")


def shard(number: int, parts: int, index: int) -> range:
    """Returns the part with this index of range(number). The first parts are one longer if the parts are uneven."""
    base, longer = divmod(number, parts)
    begin = index * base + min(index, longer)
    return range(begin, begin + base + (index < longer))


def check_placement(placement: str) -> None:
    """Raises ConfigError for an unknown placement."""
    if placement not in PLACEMENTS:
        near = difflib.get_close_matches(str(placement), PLACEMENTS, 1)
        raise ConfigError(f'placement = {placement} must be "contiguous", "zigzag" or "stripe"; '
                          + (f'did you mean "{near[0]}"?' if near else 'set it to "zigzag"'))


def ring_size(ranks: int, ulysses: int) -> int:
    """Returns the number of ring ranks. Raises ConfigError if `ulysses` does not divide the ranks of the group."""
    if operator.index(ulysses) < 1 or ranks % ulysses:
        divisors = [str(n) for n in range(1, ranks + 1) if ranks % n == 0]
        raise ConfigError(f"ulysses = {ulysses} must divide the {ranks} ranks of the group; set it to "
                          + " or ".join(filter(None, [", ".join(divisors[:-1]), divisors[-1]])))
    return ranks // ulysses


def check_length(seq_len: int, ranks: int, ulysses: int, placement: str) -> None:
    """Raises ConfigError if a part of a rank would have no token."""
    ring = ring_size(ranks, ulysses)
    pieces = ranks * (2 if placement == "zigzag" and ring > 1 else 1)
    if seq_len < pieces:
        raise ConfigError(f"the sequence length {seq_len} must be at least {pieces}, the pieces of a sequence for "
                          f"ulysses = {ulysses}, {ring} ring ranks and placement = {placement}; use at least {pieces} "
                          "tokens, or fewer ranks")


def ring_positions(ring_rank: int, ring: int, seq_len: int, placement: str) -> list[int]:
    """Returns the positions in ascending order that a ring rank's queries have inside attention."""
    if placement == "stripe":
        return list(range(ring_rank, seq_len, ring))
    if placement == "contiguous":
        return list(shard(seq_len, ring, ring_rank))
    last = 2 * ring - 1 - ring_rank
    return [*shard(seq_len, 2 * ring, ring_rank), *shard(seq_len, 2 * ring, last)]


def held_positions(rank: int, ranks: int, seq_len: int, *, ulysses: int = 1, placement: str = "zigzag") -> list[int]:
    """Returns the positions of the tokens that a rank of the group holds, in ascending order.

    Ranks form a mesh with Ulysses inside the ring: rank p has Ulysses coordinate p mod `ulysses` and ring coordinate
    p div `ulysses`. Names and positions are those of parallelism.context_parallel_placement in a run file. Any length
    is legal that gives each piece a token. Raises ConfigError otherwise.

    >>> import orthant
    >>> orthant.held_positions(1, 4, 16)
    [2, 3, 12, 13]
    >>> orthant.held_positions(1, 4, 16, ulysses=2)
    [12, 13, 14, 15]
    >>> orthant.held_positions(1, 4, 16, placement="stripe")
    [1, 5, 9, 13]
    """
    check_placement(placement)
    check_length(seq_len, ranks, ulysses, placement)
    if not 0 <= operator.index(rank) < ranks:
        raise ConfigError(f"rank = {rank} must be from 0 to {ranks - 1}, the last of the {ranks} ranks of the group")
    block = ring_positions(rank // ulysses, ranks // ulysses, seq_len, placement)
    part = shard(len(block), ulysses, rank % ulysses)
    return block[part.start:part.stop]


def shard_sequence(x: Any, rank: int, ranks: int, *, dim: int, ulysses: int = 1, placement: str = "zigzag") -> Any:
    """Returns the part of a full tensor that a rank of the group holds: the tokens at `held_positions()`.

    `dim` is the dimension of tokens: 2 of [batch, heads, tokens, head_dim], 1 of [batch, tokens]. Gradients flow
    through it.

    >>> import torch, orthant                                            # doctest: +SKIP
    >>> orthant.shard_sequence(torch.arange(16), 1, 4, dim=0)            # doctest: +SKIP
    tensor([ 2,  3, 12, 13])
    """
    positions = held_positions(rank, ranks, x.shape[dim], ulysses=ulysses, placement=placement)
    return x[(slice(None),) * (dim % x.ndim) + (positions,)]


def unshard_sequence(shards: Sequence[Any], *, dim: int, ulysses: int = 1, placement: str = "zigzag") -> Any:
    """Returns the full tensor whose parts the ranks of the group hold, given in the order of the ranks.

    It is the inverse of `shard_sequence()`. Raises ConfigError if a shard has another length than the placement gives.
    """
    from ._ring_attention import import_torch

    lengths = [x.shape[dim] for x in shards]
    positions = all_positions(lengths, ulysses, placement)
    order = sorted(range(sum(lengths)), key=[p for part in positions for p in part].__getitem__)
    joined = import_torch().cat(list(shards), dim)
    return joined[(slice(None),) * (dim % joined.ndim) + (order,)]


def all_positions(lengths: Sequence[int], ulysses: int, placement: str) -> list[list[int]]:
    """Returns the positions that each rank holds, by rank. Raises ConfigError if a length is another than theirs."""
    ranks, seq_len = len(lengths), sum(lengths)
    positions = [held_positions(rank, ranks, seq_len, ulysses=ulysses, placement=placement) for rank in range(ranks)]
    for rank, part in enumerate(positions):
        if lengths[rank] != len(part):
            raise ConfigError(
                f"rank {rank} must hold {len(part)} of the {seq_len} tokens with {ranks} ranks, ulysses = {ulysses} "
                f"and placement = {placement}, but it holds {lengths[rank]}; take its part of the full sequence with "
                f"orthant.shard_sequence(x, {rank}, {ranks}, ulysses={ulysses}, placement={placement!r}, dim=...)")
    return positions


def head_shard(heads: int, key_heads: int, ranks: int, rank: int) -> tuple[range, range]:
    """Returns the query heads of a Ulysses rank, and the key heads that they read.

    With at least as many key heads as ranks, a rank has all query heads of its key heads. With fewer, a key head goes
    to every rank that reads it.
    """
    group = heads // key_heads
    if key_heads >= ranks:
        keys = shard(key_heads, ranks, rank)
        return range(keys.start * group, keys.stop * group), keys
    queries = shard(heads, ranks, rank)
    return queries, range(queries.start // group, (queries.stop - 1) // group + 1)
