#!/usr/bin/env python3
"""Trains a small Llama 3 for 20 steps on many layouts, and prints the last loss of each. docs/verify.md has the table.

  python3 benchmarks/numerics/layouts.py
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import add_orthant_argument, print_head, print_row

RUN_FILE = """
[model]
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 8
num_attention_heads = 8
num_key_value_heads = 4
max_position_embeddings = 128
rope_theta = 500000.0
rope_scaling_type = "llama3"
rope_scaling_factor = 8.0
rope_scaling_original_max_position_embeddings = 32
[training]
seq_len = 64
steps = 20
global_batch_size = 16
local_batch_size = 2
max_norm = 1.0
[optimizer]
lr = 1e-3
[checkpoint]
interval = 0
[validation]
freq = 0
[data]
validation = 0
path = ["text.txt"]
mask_documents = true
long_documents = "cut"
"""
RING, ULYSSES, PIPELINE = ("parallelism." + key for key in (
    "context_parallel_ring", "context_parallel_ulysses", "pipeline_parallel_degree"))
TENSOR, KIND, MESH, VOCABULARY, SCHEDULE, STAGE = ("parallelism." + key for key in (
    "tensor_parallel_degree", "tensor_parallel_kind", "tensor_parallel_mesh", "vocabulary_parallel",
    "pipeline_parallel_schedule", "zero_stage"))
LAYOUTS = [
    ("1 rank", 1, {}),
    ("data 2", 2, {}),
    ("data 3, uneven shards", 3, {}),
    ("data 4, ZeRO 2", 4, {STAGE: 2}),
    ("data 4, ZeRO 3", 4, {STAGE: 3}),
    ("ring 2", 2, {RING: 2}),
    ("ring 4", 4, {RING: 4}),
    ("Ulysses 4", 4, {ULYSSES: 4}),
    ("ring 2 × Ulysses 2", 4, {RING: 2, ULYSSES: 2}),
    ("tensor 4, Megatron", 4, {TENSOR: 4}),
    ("tensor [2, 2, 1], Optimus", 4, {KIND: "2d", MESH: "2,2,1"}),
    ("tensor [2, 2, 2], Tesseract", 8, {KIND: "2.5d", MESH: "2,2,2"}),
    ("pipeline 4, 1F1B", 4, {PIPELINE: 4, SCHEDULE: "1f1b"}),
    ("pipeline 4, ZB-V", 4, {PIPELINE: 4, SCHEDULE: "zb_v"}),
    ("pipeline 4, 1F1B, vocabulary sharded", 4, {PIPELINE: 4, SCHEDULE: "1f1b", VOCABULARY: "algorithm_2"}),
    ("data 2 × tensor 2 × pipeline 2", 8, {TENSOR: 2, PIPELINE: 2}),
    ("data 2, ZeRO 3 × ring 2 × Ulysses 2", 8, {STAGE: 3, RING: 2, ULYSSES: 2}),
    ("tensor 2 × ring 2 × pipeline 2, vocabulary sharded", 8,
     {TENSOR: 2, RING: 2, PIPELINE: 2, VOCABULARY: "algorithm_1"}),
]


def last_loss(orthant, folder, ranks, settings, dtype):
    dump = f"run-{len(list(folder.iterdir()))}"
    command = [orthant, "train", "run.toml", f"run.ranks={ranks}", f"training.dtype={dtype}", f"job.dump_folder={dump}",
               *(f"{key}={value}" for key, value in settings.items())]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    lines = (folder / dump / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_orthant_argument(parser)
    orthant = os.path.abspath(parser.parse_args().orthant)
    print_head(["layout", "ranks", "loss, float64", "loss, float32"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.toml").write_text(RUN_FILE)
        (folder / "text.txt").write_text("".join(
            f"The {('red', 'green', 'blue')[i % 3]} door number {i * i % 97} leads to room {i % 13}.\n\n"
            for i in range(3000)))
        for layout, ranks, settings in LAYOUTS:
            wide, narrow = (last_loss(orthant, folder, ranks, settings, dtype) for dtype in ("float64", "float32"))
            print_row([layout, str(ranks), f"{wide:.13f}", f"{narrow:.7f}"])


if __name__ == "__main__":
    main()
