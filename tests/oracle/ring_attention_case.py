"""Inputs of the tests of orthant.ring_attention(), and one device's answer to them."""
import contextlib
import math
from unittest import mock

import orthant
import torch
import torch.distributed as dist
from orthant import _ring_operators as operators


class Case:
    """Full inputs and one device's output and gradients, [B, heads, tokens, D]."""

    def __init__(self, mask="causal", seq_len=24, heads=4, key_heads=2, dtype=torch.float64, scale=None, ulysses=1,
                 placement="zigzag", seed=0):
        torch.manual_seed(seed)
        self.options = {"causal": "causal" in mask, "documents": None, "scale": scale, "ulysses": ulysses,
                        "placement": placement}
        self.shared = {"ulysses": ulysses, "placement": placement, "dim": 2}
        if "documents" in mask:  # three documents whose ends are not those of parts
            rows = [[0] * (seq_len // 3 + i) + [7] * (seq_len // 4) + [3] * seq_len for i in (1, 3)]
            documents = torch.tensor([row[:seq_len] for row in rows])
            self.options["documents"] = documents if "by sequence" in mask else documents[0]
        *self.inputs, self.dout = (torch.randn(2, number, seq_len, 8, dtype=torch.float64).to(dtype)
                                   for number in (heads, key_heads, key_heads, heads))
        exact = [x.double().requires_grad_() for x in self.inputs]
        out = one_device(*exact, **{key: self.options[key] for key in ("causal", "documents", "scale")})
        self.expected = [out.detach(), *torch.autograd.grad((out * self.dout.double()).sum(), exact)]

    def own(self, x, group):
        return orthant.shard_sequence(x, group.rank(), group.size(), **self.shared)

    def run(self, group, function=None, **changes):
        """Output and gradients of this rank's part."""
        own = [self.own(x, group).requires_grad_() for x in self.inputs]
        out = (function or orthant.ring_attention)(*own, group, **{**self.options, **changes})
        return [out.detach(), *torch.autograd.grad((out * self.own(self.dout, group)).sum(), own)]

    def errors(self, group, results):
        """The largest errors of output, dq, dk and dv over the group, relative to the largest expected element."""
        found = [(got - self.own(want, group)).abs().max() / want.abs().max()
                 for got, want in zip(results, self.expected)]
        return greatest(group, found)

    def norm_errors(self, group, results):
        return greatest(group, [(got.double() - part).norm() / part.norm() for got, part in
                                zip(results, (self.own(want, group) for want in self.expected))])


def one_device(q, k, v, causal, documents, scale):
    """Attention by its definition, on full sequences."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    position = torch.arange(q.shape[2])
    visible = position <= position[:, None] if causal else torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)
    if documents is not None:
        documents = documents.expand(q.shape[0], -1)
        visible = (visible & (documents[:, :, None] == documents[:, None, :])).unsqueeze(1)
    return scores.masked_fill(~visible, -math.inf).softmax(-1) @ v


def greatest(group, values):
    found = torch.tensor([float(value) for value in values], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    assert not found.isnan().any(), found
    return found.tolist()


def planted(**replacements):
    """Replaces functions of the operators by wrong ones."""
    return mock.patch.multiple(operators, **replacements)


@contextlib.contextmanager
def refused(*words):
    try:
        yield
    except orthant.ConfigError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")
