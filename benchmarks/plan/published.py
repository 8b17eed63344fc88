#!/usr/bin/env python3
"""Compares `orthant plan` with steps on GPUs: step time and peak memory, planned and measured. The first table has
published steps of other engines, the others the steps that benchmarks/gpu/steps.py measured on one GPU. It needs no
GPU. docs/plan-errors.md has its output, and explains the deviations.

  python3 benchmarks/plan/published.py
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import NamedTuple

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import ROOT, add_orthant_argument, print_head, print_row

LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=128256, max_position_embeddings=131072,
             rms_norm_eps=1e-5, rope_theta=500000.0, hidden_act="silu", num_key_value_heads=8,
             tie_word_embeddings=False, attention_bias=False, mlp_bias=False)
MODELS = {
    "8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32),
    "70B": dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64),
    "70B, 12 layers": dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=12, num_attention_heads=64),
    "405B, 4 layers": dict(hidden_size=16384, intermediate_size=53248, num_hidden_layers=4, num_attention_heads=128),
}


class Run(NamedTuple):
    source: str
    hardware: str
    model: str
    ranks: int
    seq_len: int
    sequences: int        # of a step, on all ranks
    settings: dict        # keys below [parallelism], and full keys
    step_s: float         # published
    peak_gib: float | None  # published: bytes on the largest rank, given out (Megatron) or reserved (torchtitan)


MEGATRON, TITAN = "Megatron", "torchtitan"
FSDP = {"zero_stage": 3, "zero_reshard": "microbatch", "training.local_batch_size": 1}
RUNS = [
    Run(MEGATRON, "b200-8x", "70B, 12 layers", 8, 4096, 16, {"tensor_parallel_degree": 2, "zero_stage": 1}, 0.7255, 60.68),
    Run(MEGATRON, "b200-8x", "70B, 12 layers", 8, 4096, 4, {"tensor_parallel_degree": 8}, 0.2809, 28.29),
    Run(MEGATRON, "b200-8x", "70B, 12 layers", 8, 4096, 32, {"pipeline_parallel_degree": 2, "zero_stage": 1}, 1.4768,
        66.55),
    Run(MEGATRON, "b200-8x", "405B, 4 layers", 8, 4096, 16, {"tensor_parallel_degree": 4, "zero_stage": 1}, 0.8996, 52.89),
    Run(MEGATRON, "b200-8x", "405B, 4 layers", 8, 4096, 128, {"tensor_parallel_degree": 2, "zero_stage": 1}, 6.6041,
        81.59),
    Run(MEGATRON, "b200-8x", "70B, 12 layers", 8, 32768, 4, {"context_parallel_ulysses": 8, "zero_stage": 1}, 1.7681,
        104.51),
    # Published are tokens per second and GPU. The 8B runs on A100 recompute every second layer.
    Run(TITAN, "a100-8x", "8B", 64, 8192, 64, {**FSDP, "activation_checkpoint.mode": "full",
                                               "activation_checkpoint.layers": 2}, 8192 / 2904, None),
    Run(TITAN, "a100-8x", "70B", 64, 8192, 64, {**FSDP, "activation_checkpoint.mode": "full"}, 8192 / 331, None),
    Run(TITAN, "h100-8x", "8B", 8, 8192, 16,
        {**FSDP, "training.local_batch_size": 2, "activation_checkpoint.mode": "selective",
         "activation_checkpoint.operations": "norms,swiglu"}, 2 * 8192 / 5762, 82.4),
    Run(TITAN, "h100-8x", "70B", 256, 8192, 512,
        {**FSDP, "tensor_parallel_degree": 8, "training.local_batch_size": 16, "activation_checkpoint.mode": "full"},
        16 * 8192 / 8 / 829, 71.9),
]


def planned(orthant, model, hardware, ranks, seq_len, sequences, settings):
    """Returns the plan of a model, given as the fields of its config.json, as parsed JSON."""
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.json")
        with open(config, "w") as stream:
            json.dump({**LLAMA, **model}, stream)
        keys = {key if "." in key else f"parallelism.{key}": value for key, value in settings.items()}
        command = [orthant, "plan", "--json", "--hf", config, "--hardware", hardware, "--ranks", str(ranks),
                   "--seq-len", str(seq_len), "--global-batch", str(sequences),
                   *(f"{key}={value}" for key, value in keys.items())]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def layout(run):
    names = {"tensor_parallel_degree": "tensor", "pipeline_parallel_degree": "pipeline",
             "context_parallel_ulysses": "ulysses"}
    parts = [f"{name} {run.settings[key]}" for key, name in names.items() if key in run.settings]
    return ", ".join(parts + [f"ZeRO {run.settings.get('zero_stage', 0)}"])


def error(plan, published):
    return f"{100 * (plan / published - 1):+.1f} %"


def print_published(orthant):
    print_head(["engine", "hardware", "model", "ranks", "tokens", "sequences a step", "layout", "step, s", "planned, s",
                "error", "peak, GiB", "planned, GiB", "error"])
    for run in RUNS:
        plan = planned(orthant, MODELS[run.model], run.hardware, run.ranks, run.seq_len, run.sequences, run.settings)
        seconds, gib = plan["step_seconds"], plan["worst_rank"]["bytes"] / 2**30
        print_row([run.source, run.hardware, run.model, str(run.ranks), f"{run.seq_len:,}", str(run.sequences), layout(run),
                   f"{run.step_s:.4g}", f"{seconds:.4g}", error(seconds, run.step_s),
                   f"{run.peak_gib:g}" if run.peak_gib else "", f"{gib:.2f}", error(gib, run.peak_gib) if run.peak_gib else ""])


def steps_of(device, program):
    """The steps of benchmarks/gpu/DEVICE-PROGRAM.jsonl: `train` is Orthant, and `steps` is PyTorch."""
    with open(os.path.join(ROOT, "benchmarks", "gpu", f"{device}-{program}.jsonl")) as stream:
        return [json.loads(line) for line in stream]


def planned_step(orthant, hardware, step):
    """The plan of a step that benchmarks/gpu measured on one GPU, as parsed JSON."""
    model = dict(hidden_size=step["hidden"], intermediate_size=step["mlp"], num_hidden_layers=step["layers"],
                 num_attention_heads=step["heads"], num_key_value_heads=step["kv_heads"], head_dim=step["head"],
                 vocab_size=step["vocabulary"], max_position_embeddings=step["seq_len"])
    settings = {"training.local_batch_size": step["sequences"],
                "activation_checkpoint.mode": "full" if step["recompute"] else "none"}
    return planned(orthant, model, hardware, 1, step["seq_len"], step["sequences"] * step["microbatches"], settings)


def print_measured(orthant, device, program):
    """Prints measured steps together with those that are planned for Orthant."""
    print(f"\n{device}, one GPU, {'Orthant' if program == 'train' else 'PyTorch'}:\n")
    print_head(["width", "layers", "tokens", "sequences", "microbatches", "recomputed", "step, s", "planned, s", "error",
                "peak, GiB", "planned, GiB", "error"])
    for step in steps_of(device, program):
        plan = planned_step(orthant, f"{device}-8x", step)
        seconds, gib, peak = plan["step_seconds"], plan["worst_rank"]["bytes"] / 2**30, step["peak_bytes"] / 2**30
        print_row([step["width"], str(step["layers"]), f"{step['seq_len']:,}", str(step["sequences"]),
                   str(step["microbatches"]), "layers" if step["recompute"] else "nothing", f"{step['step_seconds']:.4f}",
                   f"{seconds:.4f}", error(seconds, step["step_seconds"]), f"{peak:.2f}", f"{gib:.2f}", error(gib, peak)])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_orthant_argument(p)
    a = p.parse_args()
    print_published(a.orthant)
    for device, program in (("h100", "train"), ("h100", "steps"), ("h200", "train"), ("h200", "steps")):
        print_measured(a.orthant, device, program)


if __name__ == "__main__":
    main()
