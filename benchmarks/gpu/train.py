#!/usr/bin/env python3
"""Measures whole training steps of Orthant on one GPU: the cases of cases.py, which steps.py measures in PyTorch.
benchmarks/plan/published.py compares plans with both.

A case runs as `orthant train` until it has measured some steps; it is then killed, so that it saves no checkpoint. Tokens
are random, as in steps.py. Each line of the output is one case as JSON: its sizes, the median time of a step, and the
peak bytes of the device's tensors.

  python3 benchmarks/gpu/train.py > h100-train.jsonl
  python3 benchmarks/gpu/train.py --only 8B 1B
"""
import argparse
import json
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cases import CASES, WIDTHS  # from this folder

STEPS = 7
WARMUP_STEPS = 2
LONGEST_S = 150  # of one case

RUN_FILE = """
[run]
ranks = 1
device = "cuda"
[model]
vocab_size = {width.vocabulary}
hidden_size = {width.hidden}
intermediate_size = {width.mlp}
num_hidden_layers = {case.layers}
num_attention_heads = {width.heads}
num_key_value_heads = {width.kv_heads}
head_dim = {width.head}
max_position_embeddings = {case.seq_len}
rope_theta = 500000.0
[training]
dtype = "bfloat16"
seq_len = {case.seq_len}
local_batch_size = {case.sequences}
global_batch_size = {sequences}
steps = 1000
[activation_checkpoint]
mode = "{mode}"
[data]
path = ["{folder}/tokens"]
format = "megatron"
tokenizer = "{folder}/tokenizer.json"
validation = 0
[validation]
freq = 0
[job]
dump_folder = "{folder}/run"
"""


def write_random_tokens(prefix, vocabulary, count):
    """Writes one document as a Megatron dataset, PREFIX.bin and PREFIX.idx, of type 4 (int32)."""
    draw = random.Random(0)
    Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{count}i", *draw.choices(range(vocabulary), k=count)))
    Path(f"{prefix}.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 4, 1, 2, count, 0, 0, 1))


def write_tokenizer(file, vocabulary):
    """Writes a byte-level BPE tokenizer without merges, so that every id below `vocabulary` is legal."""
    end = "<|endoftext|>"
    model = {"type": "BPE", "vocab": {end: 0, **{f"token {i}": i for i in range(1, vocabulary)}}, "merges": []}
    special = {"id": 0, "content": end, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False}
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [special], "normalizer": None, "model": model,
                                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                                "decoder": {"type": "ByteLevel"}}))


def run_file(case, folder):
    path = folder / "run.toml"
    path.write_text(RUN_FILE.format(case=case, width=WIDTHS[case.width], sequences=case.sequences * case.microbatches,
                                    mode="full" if case.recompute else "none", folder=folder))
    return path


def steps_of(metrics):
    """The complete lines of metrics.jsonl."""
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text().split("\n")[:-1]]


def measure(orthant, case):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = run_file(case, folder)
        sequences = case.sequences * case.microbatches
        write_tokenizer(folder / "tokenizer.json", WIDTHS[case.width].vocabulary)
        write_random_tokens(folder / "tokens", WIDTHS[case.width].vocabulary, (STEPS + 2) * sequences * case.seq_len)
        with open(folder / "log", "w") as log:
            running = subprocess.Popen([orthant, "train", file], stdout=log, stderr=log)
            deadline = time.monotonic() + LONGEST_S
            while len(steps_of(folder / "run/metrics.jsonl")) < STEPS and running.poll() is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
            running.kill()
            running.wait()
        steps = steps_of(folder / "run/metrics.jsonl")[WARMUP_STEPS:]
        if not steps:
            raise RuntimeError((folder / "log").read_text().strip().split("\n")[-1])
        return {**WIDTHS[case.width]._asdict(), **case._asdict(), "steps": len(steps),
                "step_seconds": statistics.median(step["step_seconds"] for step in steps),
                "tokens_per_second": statistics.median(step["tokens_per_second"] for step in steps),
                "mfu": statistics.median(step["mfu"] for step in steps), "peak_bytes": steps[-1]["peak_memory_bytes"],
                "losses": [round(step["loss"], 4) for step in steps]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orthant", default="build-cuda/orthant", help="program that was built with CUDA")
    parser.add_argument("--only", nargs="*", help="widths to measure (default: all)")
    arguments = parser.parse_args()
    for case in CASES:
        if arguments.only and case.width not in arguments.only:
            continue
        try:
            print(json.dumps(measure(arguments.orthant, case)), flush=True)
        except RuntimeError as error:  # out of memory, for example: the other cases still run
            print(f"{case}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
