"""One rank of the tests of orthant.ring_attention(), which ring_attention.py starts: STORE EXAMPLE [--full], with the
environment variables of torchrun. STORE is a new file, and EXAMPLE a script that ends the test.

Every rank makes the same full inputs, computes one device's answer in float64 by plain softmax and autograd, and
compares its own part of it. The ranks of a group run the same checks in the same order.
"""
import itertools
import math
import os
import pathlib
import sys
import time

import orthant
import torch
import torch.distributed as dist
from orthant import _ring_operators as operators
from ring_attention_case import Case, planted, refused
from ring_attention_operators import FullTensor, check_finite_differences, check_operators
from ring_attention_refusals import check_refusals

MESHES = [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2), (4, 4)]  # ranks, ulysses
PLACEMENTS = ("contiguous", "zigzag", "stripe")
MASKS = ("full", "causal", "documents", "causal documents", "causal documents by sequence")
TOLERANCE = 1e-10  # of the largest element, in float64
PLANTED = 1e-3     # a mistake must change a result by at least this, relative to its largest element


def check_equality(groups, full):
    worst, count = 0.0, 0
    lengths, heads = ((24, 27, 41), ((4, 2), (4, 4), (6, 3), (4, 1), (5, 5))) if full else ((27,), ((4, 2),))
    for (ranks, ulysses), placement, mask, seq_len, (all_heads, key_heads) in itertools.product(
            MESHES, PLACEMENTS, MASKS, lengths, heads):
        if groups[ranks] is None or (ranks == ulysses and placement != "zigzag"):
            continue  # without a ring, all placements are the same
        case = Case(mask, seq_len, all_heads, key_heads, ulysses=ulysses, placement=placement,
                    scale=0.7 if mask == "full" else None)
        errors = case.errors(groups[ranks], case.run(groups[ranks]))
        assert max(errors) < TOLERANCE, (ranks, ulysses, placement, mask, seq_len, all_heads, key_heads, errors)
        worst, count = max(worst, *errors), count + 1
    return f"{count} cases in float64, largest error {worst:.1e} (bound {TOLERANCE:.0e})"


def check_strided_ranks(groups, full):
    """Two groups of every other rank at the same time, and tensors whose memory is [B, tokens, heads, D]."""
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group, case = pairs[dist.get_rank() % 2], Case("causal documents", 27)

    def transposed(*tensors, **options):
        q, k, v, group = tensors
        own = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        return orthant.ring_attention(*own, group, **options)

    for function in (orthant.ring_attention, transposed):
        errors = case.errors(group, case.run(group, function))
        assert max(errors) < TOLERANCE, errors


# The sum, the sum weighted by (flat index modulo 7) - 3, and the sum of squares of output, dq, dk and dv. They are the
# values that SequencePrecision.EveryRingHasTheReferenceTable requires of the engine.
ENGINE = {False: [[-67.576201980042, 33.260890886626, 90.906775254073],
                  [10.303047610035, 7.2586203367317, 59.651875249419],
                  [0, -28.568786883408, 115.90969623585],
                  [12.329369997606, -14.284436005837, 68.527622795615]],
          True: [[-63.433617292817, 48.244675801116, 180.85544788175],
                 [23.291666733199, -1.6977823650645, 72.841019076532],
                 [0, -27.762511307312, 137.79485931825],
                 [12.329369997606, -19.671913302284, 157.97584651352]]}


def hashed_values(seed):
    """The inputs of that table (tests/support/reference_values.h), [2, 3, 16, 4]."""
    v = (torch.arange(1, 385) * 2654435761 + seed * 40503) & 0xFFFFFFFF
    v = ((v ^ (v >> 15)) * 2246822519) & 0xFFFFFFFF
    return (4 * ((v ^ (v >> 13)).double() / 2**32 - 0.5)).reshape(2, 3, 16, 4)


def check_engine(groups, full):
    weights = torch.arange(384) % 7 - 3
    for (ranks, group), causal in itertools.product(groups.items(), (False, True)):
        if group is None or 16 % (2 * ranks):
            continue
        *own, dout = (orthant.shard_sequence(hashed_values(seed), group.rank(), ranks, dim=2) for seed in (1, 2, 3, 4))
        own = [x.requires_grad_() for x in own]
        out = orthant.ring_attention(*own, group, causal=causal)
        results = [out.detach(), *torch.autograd.grad((out * dout).sum(), own)]
        for result, expected in zip(results, ENGINE[causal]):
            flat = FullTensor.apply(result, group, 2).flatten()
            sums = [flat.sum(), (flat * weights).sum(), flat.square().sum()]
            assert all(abs(float(a) - b) < 2e-11 for a, b in zip(sums, expected)), (ranks, causal, sums, expected)
    return "sums of output and gradients are those of the engine"


def check_precision(groups, full):
    """The bound of the relative error in the norm, derived in docs/derivations.md, is u + 2^-24 (sqrt(5 S) + 4 R)."""
    lines = []
    for dtype, roundoff in ((torch.float32, 2**-24), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        worst = 0.0
        for (ranks, ulysses), seq_len in itertools.product(MESHES, (64, 301) if full else (64,)):
            if groups[ranks] is None:
                continue
            case = Case("causal documents", seq_len, dtype=dtype, ulysses=ulysses)
            results = case.run(groups[ranks])
            assert all(x.dtype == dtype for x in results), results
            bound = roundoff + 2**-24 * (math.sqrt(5 * seq_len) + 4 * ranks // ulysses)
            errors = case.norm_errors(groups[ranks], results)
            assert max(errors) < bound, (dtype, ranks, ulysses, errors, bound)
            worst = max(worst, max(errors) / bound)
        lines.append(f"{str(dtype)[6:]} within {worst:.2f} of its bound")
    # The control: attention that rounds each rank's partial results to bfloat16 exceeds the bound of bfloat16.
    case, attend = Case("causal documents", 64, dtype=torch.bfloat16), operators.attend
    rounded = planted(attend=lambda *a: tuple(x.bfloat16().float() for x in attend(*a)))
    with rounded:
        errors = case.norm_errors(groups[4], case.run(groups[4]))
    assert max(errors) > 2**-8 + 2**-24 * (math.sqrt(5 * 64) + 16), errors
    return "; ".join(lines)


def check_mistakes(groups, full):
    """Each planted mistake is on one rank or in one function. The comparison must see it."""
    group, rank = groups[4], dist.get_rank()
    attend_backward, positions = operators.attend_backward, operators.ring_positions

    def with_lse_of_block(dout, delta, lse, q, k, v, visible, scale):
        if rank == 1:
            lse = operators.attend(q, k, v, visible, scale)[1].clamp_min(-1e30)
        return attend_backward(dout, delta, lse, q, k, v, visible, scale)

    def without_summand(*arguments):
        dq, dk, dv = attend_backward(*arguments)
        return (dq, dk * 0, dv * 0) if rank == 3 else (dq, dk, dv)

    mistakes = {
        "rank 1 forgets the log-sum-exp of the other blocks in backward": {"attend_backward": with_lse_of_block},
        "rank 3 adds nothing to the gradients of keys and values": {"attend_backward": without_summand},
        "gradients are divided by the number of ranks": {
            "attend_backward": lambda *a: tuple(x / 4 for x in attend_backward(*a))},
        "delta is left out": {"attend_backward": lambda dout, delta, *a: attend_backward(dout, delta * 0, *a)},
        "positions of ring rank 2 are shifted by one": {
            "ring_positions": lambda r, ring, n, p: [(x + (r == 2)) % n for x in positions(r, ring, n, p)]},
        "positions are contiguous": {"ring_positions": lambda r, ring, n, p: positions(r, ring, n, "contiguous")},
        "partial results are averaged": {"merge": lambda one, other: ((one[0] + other[0]) / 2, one[1])},
    }
    case = Case("causal")
    for name, mistake in mistakes.items():
        with planted(**mistake):
            errors = case.errors(group, case.run(group))
        assert max(errors) > PLANTED, (name, errors)
        if "attend_backward" in mistake:
            assert errors[0] < TOLERANCE, (name, errors)  # only gradients are wrong
    case = Case("causal documents")
    assert max(case.errors(group, case.run(group, documents=None))) > PLANTED
    assert max(case.errors(group, case.run(group))) < TOLERANCE
    return f"{len(mistakes) + 1} planted mistakes are seen"


def check_timing(groups, full):
    """Delays of a rank change no bit. The control: another order of the blocks does."""
    group, start, blocks = groups[4], operators.start_exchange, operators.blocks
    case = Case("full", 50, dtype=torch.float32)  # every rank computes all blocks
    expected = case.run(group)
    for slow in range(4):
        def delayed(*arguments, slow=slow):
            time.sleep(0.003 if dist.get_rank() == slow else 0)
            return start(*arguments)
        with planted(start_exchange=delayed):
            assert all(map(torch.equal, case.run(group), expected)), slow

    def reordered(mesh, own_block):
        first, *others = blocks(mesh, own_block)
        return iter([first, *reversed(others)])

    own = [case.own(x, group) for x in case.inputs]
    with planted(blocks=reordered):
        assert not torch.equal(orthant.ring_attention(*own, group, **case.options), expected[0])
    return "results are bit-equal when a rank is delayed"


def check_work(groups, full):
    """Blocks without a visible key are skipped, and a next block is on its way while a block is computed."""
    group, attend, start, log = groups[4], operators.attend, operators.start_exchange, []
    spies = planted(attend=lambda *a: (log.append("attend"), attend(*a))[1],
                    start_exchange=lambda *a: (log.append(a[3]) if a[1] else None, start(*a))[1])
    for placement, counts in (("contiguous", [1, 2, 3, 4]), ("zigzag", [4] * 4), ("stripe", [4] * 4)):
        log.clear()
        with spies:
            Case(placement=placement).run(group)
        assert log.count("attend") == counts[group.rank()], (placement, log)
        assert log.count(operators.BLOCK) == 6 and log.count(operators.SUM) == 3, log
    forward = log[:log.index("attend") + 8]  # of stripe: a block is sent before each of the first three computations
    assert forward[:7] == [operators.BLOCK, "attend"] * 3 + ["attend"], forward
    return "hidden blocks are skipped; 3 messages forward, 3 + 3 backward on 4 ring ranks"


def check_placements(groups, full):
    """Shards of every length put together are the full tensor, and are those of other dims and dtypes."""
    for ranks, ulysses, placement, seq_len in itertools.product((1, 2, 3, 4, 6), (1, 2, 3), PLACEMENTS, (12, 13, 30)):
        if ranks % ulysses == 0:
            options = {"ulysses": ulysses, "placement": placement}
            x = torch.randn(2, seq_len, 3, requires_grad=True)
            parts = [orthant.shard_sequence(x, rank, ranks, dim=1, **options) for rank in range(ranks)]
            assert torch.equal(orthant.unshard_sequence(parts, dim=-2, **options), x)
            assert torch.equal(orthant.shard_sequence(x.transpose(0, 1), 0, ranks, dim=-3, **options),
                               parts[0].transpose(0, 1))
    return None


def main(store, example, full):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    with refused('init_process_group("gloo")'):
        orthant.ring_attention(*[torch.ones(1, 1, 4, 2)] * 3)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    groups = {}
    for size in range(1, ranks + 1):
        group = dist.new_group(range(size))
        groups[size] = group if rank < size else None
    for check in (check_placements, check_refusals, check_equality, check_strided_ranks, check_engine, check_precision,
                  check_mistakes, check_timing, check_work, check_operators, check_finite_differences):
        began = time.monotonic()
        line = check(groups, full)
        dist.barrier()
        if rank == 0 and line:
            print(f"{line} ({time.monotonic() - began:.1f} s)", flush=True)
    dist.destroy_process_group()
    exec(compile(pathlib.Path(example).read_text(encoding="utf-8"), example, "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--full" in sys.argv)
