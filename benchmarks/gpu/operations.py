"""Operations that kernels.py measures alone and steps.py in whole steps: fused kernels, and the product of a weight
gradient."""
import torch
import torch.nn.functional as F

# A compiled function is compiled once per width, and not once per number of tokens.
torch._dynamo.config.automatic_dynamic_shapes = False
torch._dynamo.config.recompile_limit = 64


def fused(function):
    """Compiles a function of tensors of [tokens, ..] for any number of tokens."""
    compiled = torch.compile(function)

    def call(*arguments):
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and argument.dim() > 1:
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        return compiled(*arguments)
    return call


@fused
def add_norm(x, residual, weight):
    """Returns x + residual, and its RMSNorm."""
    total = x + residual
    wide = total.float()
    return total, (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * weight).to(x.dtype)


@fused
def swiglu(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return (F.silu(gate.float()) * up.float()).to(gate_up.dtype)


def add_product(y, x, total):
    """total += y^T x, in float32."""
    torch.ops.aten.addmm.dtype_out(total, y.t(), x, torch.float32, out=total)
