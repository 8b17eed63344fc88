#!/usr/bin/env python3
"""Checks that a real run with a context of 32,768 tokens over four ranks (U = 2, R = 2) has the losses of one rank.

Both runs train examples/long_context.toml, made longer: one sequence of the Jargon File per step, half the layers,
attention to the full sequence, in float32. Before the first update, the relative difference of the loss must be at most
1e-6, and that of the gradient's norm at most 1e-5. These are the bounds of USP, check 10. In later steps the weights
drift (docs/derivations.md, "Whole runs"). The bound of the loss then grows by (sum of 2 lr sqrt(P) B |g| over the previous
steps) / loss, with B = 1e-5 for gradients. Exits with 1 if a bound is exceeded.

  python3 benchmarks/sequence/long_run.py [--quick] [--steps 3] [--layout-only model.sliding_window=16384]

--layout-only KEY=VALUE is a setting for the four ranks only. It is the negative control: a setting that changes the
losses must make the check fail.
"""
import argparse
import json
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (ROOT, add_orthant_argument, largest_memory_bytes, loss_bounds, machine, output_of, print_head,
                    print_row, read_json_lines, relative)

LOSS_BOUND, GRADIENT_BOUND = 1e-6, 1e-5
MAX_NORM = 1.0  # gradients are clipped to this norm before the update


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_orthant_argument(p)
    p.add_argument("--seq-len", type=int, default=2048 if quick else 32768)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--layout-only", action="append", default=[], metavar="KEY=VALUE")
    p.add_argument("--quick", action="store_true", help="smoke test with 2,048 tokens")
    return p.parse_args()


def train(a, name, folder, *settings):
    """Trains, and returns the metrics of the steps and the number of parameters."""
    dump = os.path.join(folder, name)
    keys = {"job.dump_folder": dump, "model.num_hidden_layers": a.layers, "model.max_position_embeddings": a.seq_len,
            "data.mask_documents": "false", "data.long_documents": "refuse", "training.seq_len": a.seq_len,
            "training.steps": a.steps,
            "training.global_batch_size": 1, "training.local_batch_size": 1, "training.max_norm": MAX_NORM,
            "lr_scheduler.warmup_steps": 0, "lr_scheduler.decay_type": "constant", "validation.freq": 0,
            "metrics.enable_tensorboard": "false"}
    arguments = [os.path.join(ROOT, "examples", "long_context.toml"), *(f"{k}={v}" for k, v in keys.items()), *settings]
    planned = json.loads(output_of([a.orthant, "plan", *arguments, "--json"]))
    most = largest_memory_bytes(planned)
    print(f"  {name}: {planned['ranks']} ranks, {most / 2**20:,.0f} MiB of tensors each, by plan", file=sys.stderr)
    output_of([a.orthant, "train", *arguments])
    steps = read_json_lines(os.path.join(dump, "metrics.jsonl"))
    if len(steps) != a.steps:
        sys.exit(f"{name}: {len(steps)} steps instead of {a.steps}")
    return steps, planned["parameters"]["count"]


def compare(one, four, parameters):
    """Prints the rows of the table. Returns a text for each exceeded bound."""
    wrong = []
    bounds = loss_bounds(one, parameters, LOSS_BOUND, GRADIENT_BOUND, MAX_NORM)
    for oracle, layout, bound in zip(one, four, bounds):
        loss, norm = (relative(layout[key], oracle[key]) for key in ("loss", "grad_norm"))
        print_row([str(oracle["step"]), f"{oracle['loss']:.8f}", f"{layout['loss']:.8f}", f"{loss:.1e}", f"{bound:.1e}",
                   f"{norm:.1e}", f"{oracle['step_seconds']:.1f}", f"{layout['step_seconds']:.1f}",
                   f"{oracle['peak_memory_bytes'] / 2**20:,.0f}", f"{layout['peak_memory_bytes'] / 2**20:,.0f}"])
        if loss > bound:
            wrong.append(f"the loss of step {oracle['step']} differs by {loss:.1e}, more than the bound {bound:.1e}")
        if oracle["step"] == 1 and norm > GRADIENT_BOUND:
            wrong.append(f"the gradient norm of step 1 differs by {norm:.1e}, more than the bound {GRADIENT_BOUND:.1e}")
    return wrong


def main():
    a = arguments()
    print(f"{machine()}; {a.seq_len:,} tokens, {a.layers} layers, float32\n")
    with tempfile.TemporaryDirectory() as folder:
        one, parameters = train(a, "one-rank", folder, "run.ranks=1", "parallelism.context_parallel_ulysses=1",
                                "parallelism.context_parallel_ring=1")
        four, _ = train(a, "four-ranks", folder, "run.ranks=4", "parallelism.context_parallel_ulysses=2",
                        "parallelism.context_parallel_ring=2", *a.layout_only)
    print_head(["step", "loss, 1 rank", "loss, U=2 R=2", "relative difference", "bound",
                "relative difference of the gradient norm",
                "s, 1 rank", "s, U=2 R=2", "peak MiB, 1 rank", "peak MiB a rank, U=2 R=2"])
    if wrong := compare(one, four, parameters):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
