"""Ring attention for tensors of PyTorch: the function, and the laws of its arguments."""
from __future__ import annotations

import math
from typing import Any, Optional

from ._errors import ConfigError, Error
from ._sequence import check_placement, ring_size


def import_torch() -> Any:
    """Returns PyTorch's module. Raises Error with a way out if it is not installed."""
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise Error("ring_attention() and unshard_sequence() require PyTorch, which the package does not install: "
                    f"{error}; install it with `pip install torch`") from None
    return torch


def check_group(torch: Any, group: Any) -> Any:
    """Returns the group, or the default one. Raises ConfigError if this rank is not in it."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError("ring_attention() requires the process groups of torch.distributed; call "
                          'torch.distributed.init_process_group("gloo") first, also with a single rank')
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise ConfigError(f"group = {group} must be a process group that contains this rank, {dist.get_rank()}; call "
                          "ring_attention() only on the ranks of the group, with the result of new_group()")
    return group


def check_tensors(torch: Any, q: Any, k: Any, v: Any) -> None:
    """Raises ConfigError unless q, k and v are CPU tensors whose shapes and dtypes fit each other."""
    shapes = {name: list(x.shape) for name, x in (("q", q), ("k", k), ("v", v))}
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.device.type != "cpu":
            raise ConfigError(f"{name} must be on the CPU, but it is on {x.device}; pass {name}.cpu(), because "
                              "ring_attention() is a reference on CPUs")
        if x.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16) or x.dtype != q.dtype:
            raise ConfigError(f"q, k and v must all be float64, float32, bfloat16 or float16, but q is {q.dtype} and "
                              f"{name} is {x.dtype}; convert them with .to()")
        if x.ndim != 4:
            raise ConfigError(f"{name} must have the shape [batch, heads, tokens of this rank, head_dim], but its "
                              f"shape is {shapes[name]}")
    if shapes["k"] != shapes["v"] or [*q.shape[:1], *q.shape[2:]] != [*k.shape[:1], *k.shape[2:]] or not q.numel():
        raise ConfigError("k and v must have the same shape, and q, k and v must have equal batches, tokens and head "
                          f"sizes of at least 1, but q is {shapes['q']}, k is {shapes['k']} and v is {shapes['v']}")
    heads, key_heads = q.shape[1], k.shape[1]
    if not key_heads or heads % key_heads:
        legal = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ConfigError(f"the {key_heads} heads of k and v must divide the {heads} heads of q; legal are {legal}")


def check_documents(torch: Any, documents: Any, batch: int) -> None:
    """Raises ConfigError unless the documents are integers of the shape [tokens] or [batch, tokens]."""
    if not isinstance(documents, torch.Tensor) or documents.dtype not in (torch.int64, torch.int32):
        raise ConfigError("documents must be a tensor of int64 or int32 with the number of each token's document, but "
                          f"it is {getattr(documents, 'dtype', type(documents).__name__)}; convert it with .long()")
    if documents.device.type != "cpu" or documents.ndim not in (1, 2) or documents.shape[:-1] not in ((), (batch,)):
        raise ConfigError(f"documents must have the shape [tokens of the full sequence] or [{batch}, tokens of the "
                          f"full sequence] and be on the CPU, but its shape is {list(documents.shape)} on "
                          f"{documents.device}")


def ring_attention(q: Any, k: Any, v: Any, group: Any = None, *, causal: bool = True, documents: Any = None,
                   ulysses: int = 1, placement: str = "zigzag", scale: Optional[float] = None) -> Any:
    """Computes attention over sequences whose tokens are sharded over the ranks of a Gloo group.

    It is a reference to test other implementations against, on CPUs, and not a fast kernel. All ranks of the group call
    it with their own part of the same sequences, and again in backward. Output and gradients are those of one device,
    for this rank's tokens. Results do not depend on timing. Second derivatives are not available.

    - `q` has the shape [batch, heads, tokens of this rank, head_dim], as for scaled_dot_product_attention(); `k` and
      `v` may have fewer heads, which must divide those of `q`. `shard_sequence()` takes a rank's part of a sequence.
      All are float64, float32, bfloat16 or float16; partial results are float64 for float64, else float32.
    - `group` is a group of torch.distributed; None is the default group.
    - `documents` holds, for each token of the full sequence, the number of its document: [tokens], or
      [batch, tokens]. Tokens attend only to tokens with the same number.
    - `ulysses` ranks exchange tokens for heads by an all-to-all; the others form rings. See `held_positions()`.
    - `placement` is "contiguous", "zigzag" or "stripe"; `scale` is 1 / sqrt(head_dim) if it is None.

    Raises ConfigError for an impossible request. If ranks disagree about the request, all of them raise it.
    """
    torch = import_torch()
    group = check_group(torch, group)
    check_tensors(torch, q, k, v)
    check_placement(placement)
    ring_size(group.size(), ulysses)
    if ulysses > q.shape[1]:
        raise ConfigError(f"ulysses = {ulysses} must be at most the {q.shape[1]} heads of q; use at least {ulysses} "
                          "heads, or ulysses = 1")
    if documents is not None:
        check_documents(torch, documents, q.shape[0])
    from . import _ring_operators  # noqa: F401  imports torch, and registers the operators

    sums = torch.float64 if q.dtype == torch.float64 else torch.float32
    out, _ = torch.ops.orthant.ring_attention_forward(
        q.to(sums), k.to(sums), v.to(sums), documents, group.group_name, bool(causal), int(ulysses), placement,
        1 / math.sqrt(q.shape[3]) if scale is None else float(scale))
    return out.to(q.dtype)
