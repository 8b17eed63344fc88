"""Tests of the operators of orthant.ring_attention() with PyTorch's own checks: opcheck, gradcheck and the compiler."""
import orthant
import torch
import torch.distributed as dist
from orthant import _ring_operators as operators
from ring_attention_case import Case, planted, refused


def settings(group, ulysses=1, placement="zigzag", documents=None):
    return documents, group.group_name, True, ulysses, placement, 0.5


def check_operators(groups, full):
    """PyTorch's own checks of both operators, with --full on two ranks at once. They import PyTorch's compiler."""
    group = groups[2 if full else 1]
    if group is None:
        return None
    checks = 0
    for dtype, ulysses, mask in ((torch.float64, 1, "causal documents"), (torch.float32, group.size(), "causal")):
        case = Case(mask, 8, dtype=dtype, ulysses=ulysses)
        own = [case.own(x, group).requires_grad_() for x in case.inputs]
        rest = settings(group, ulysses, documents=case.options["documents"])
        tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {}
        found = torch.library.opcheck(torch.ops.orthant.ring_attention_forward, (*own, *rest), **tolerance)
        own = [x.detach() for x in own]
        out, lse = torch.ops.orthant.ring_attention_forward(*own, *rest)
        backward = (torch.ones_like(out), torch.ones_like(lse), out, lse, *own, *rest)
        more = torch.library.opcheck(torch.ops.orthant.ring_attention_backward, backward, **tolerance)
        assert len(found) == 4 and set(found.values()) | set(more.values()) == {"SUCCESS"}, (found, more)
        checks += len(found) + len(more)
    # The control: a fake kernel with a wrong shape is found.
    wrong = lambda q, *_: (q.new_empty(q.shape), q.new_empty(q.shape))  # noqa: E731
    torch.library.register_fake(operators.FORWARD, wrong, allow_override=True)
    found = torch.library.opcheck(torch.ops.orthant.ring_attention_forward, (*own, *rest), test_utils="test_faketensor",
                                  raise_exception=False)
    torch.library.register_fake(operators.FORWARD, operators._forward_shapes, allow_override=True)
    assert "Shapes" in str(found["test_faketensor"]), found
    if full:
        case = Case("causal documents", dtype=torch.float32)
        compiled = torch.compile(orthant.ring_attention, backend="aot_eager", fullgraph=True)
        assert all(map(torch.equal, case.run(group, compiled), case.run(group)))
    return f"{checks} checks of torch.library.opcheck"


class FullTensor(torch.autograd.Function):
    """All ranks' parts -> the full tensor, on all ranks. Its gradient, equal on all ranks, goes back in parts."""

    @staticmethod
    def forward(ctx, part, group, dim):
        parts = [torch.empty_like(part) for _ in range(group.size())]
        dist.all_gather(parts, part.contiguous(), group=group)
        ctx.group, ctx.dim = group, dim
        return orthant.unshard_sequence(parts, dim=dim)

    @staticmethod
    def backward(ctx, gradient):
        return orthant.shard_sequence(gradient, ctx.group.rank(), ctx.group.size(), dim=ctx.dim), None, None


class OwnPart(torch.autograd.Function):
    """The full tensor, on all ranks -> this rank's part. Its gradient is that of the full tensor."""

    @staticmethod
    def forward(ctx, full, group):
        ctx.group = group
        return orthant.shard_sequence(full, group.rank(), group.size(), dim=2)

    @staticmethod
    def backward(ctx, gradient):
        return FullTensor.apply(gradient, ctx.group, 2), None


def check_finite_differences(groups, full):
    """gradcheck of outputs and log-sum-exps with respect to full q, k and v: all ranks perturb the same element."""
    group = groups[2]
    if group is None:
        return None
    torch.manual_seed(1)
    inputs = [torch.randn(1, heads, 4, 2, dtype=torch.float64, requires_grad=True) for heads in (2, 1, 1)]

    def function(*tensors):
        own = [OwnPart.apply(x, group) for x in tensors]
        out, lse = torch.ops.orthant.ring_attention_forward(*own, *settings(group))
        return FullTensor.apply(out, group, 2), FullTensor.apply(lse, group, 2)

    def check():
        return torch.autograd.gradcheck(function, inputs, raise_exception=False)

    assert check()
    attend_backward = operators.attend_backward
    with planted(attend_backward=lambda dout, delta, *a: attend_backward(dout, delta * 0, *a)):
        assert not check()  # the control: delta is left out
    out, _ = torch.ops.orthant.ring_attention_forward(*[OwnPart.apply(x, group) for x in inputs], *settings(group))
    [dq] = torch.autograd.grad(out.sum(), inputs[:1], create_graph=True)
    with refused("only first derivatives", "create_graph=True"):
        torch.autograd.grad(dq.sum(), inputs)
    return "torch.autograd.gradcheck on two ranks, with the gradient of the log-sum-exp"
