#!/usr/bin/env python3
"""Compares two builds of the program: trains with each on one rank and on six meshes, and compares losses and gradient
norms bit for bit. It also compares the planned bytes of every rank. Use it to show that a change of the code changes no
number: build the commit before the change in another clone, and name both programs.

  tools/compare_builds.py OLD/build/orthant NEW/build/orthant
"""
import json
import os
import subprocess
import sys
import tempfile

STEPS = 4
COMMON = ["--model.hidden_size=64", "--model.intermediate_size=96", "--model.num_hidden_layers=4",
          "--model.num_attention_heads=4", "--model.num_key_value_heads=4", "--model.max_position_embeddings=64",
          "--training.seq_len=64", f"--training.steps={STEPS}", "--training.global_batch_size=8",
          "--training.local_batch_size=2", "--lr_scheduler.warmup_steps=2", "--validation.freq=0",
          "--checkpoint.interval=0", "--metrics.no-enable_tensorboard"]
LAYOUTS = {
    "one rank": ["--run.ranks=1"],
    "data 4": ["--run.ranks=4"],
    "ring 2 x ulysses 2": ["--run.ranks=4", "--parallelism.context_parallel_ring=2",
                           "--parallelism.context_parallel_ulysses=2"],
    "Megatron 4 columns, sequence": ["--run.ranks=4", "--parallelism.tensor_parallel_degree=4"],
    "Tesseract [2, 2, 2]": ["--run.ranks=8", "--parallelism.tensor_parallel_kind=2.5d",
                            "--parallelism.tensor_parallel_mesh=2,2,2"],
    "pipeline 4, algorithm_2": ["--run.ranks=4", "--parallelism.pipeline_parallel_degree=4",
                                             "--parallelism.pipeline_parallel_schedule=1f1b",
                                             "--parallelism.vocabulary_parallel=algorithm_2"],
    "pipeline 2 x columns 2 x data 2, bfloat16": ["--run.ranks=8", "--parallelism.pipeline_parallel_degree=2",
                                                  "--parallelism.tensor_parallel_degree=2",
                                                  "--training.dtype=bfloat16",
                                                  "--activation_checkpoint.mode=full"],
}


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(arguments)} failed with {done.returncode}:\n{done.stderr}")
    return done.stdout


def train(program, layout, run_file, folder):
    """Returns (loss, gradient norm) of every step, as the program wrote them."""
    run(program, "train", run_file, f"--job.dump_folder={folder}", *COMMON, *layout)
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(row["loss"], row["grad_norm"]) for row in rows if "loss" in row]


def planned_bytes(program, layout, run_file):
    """Returns the plan's bytes of memory by class of ranks and part, and of messages by class and kind, without
    the names of the kinds, which may be reworded."""
    plan = json.loads(run(program, "plan", run_file, "--json", *COMMON, *layout))
    return plan["classes"], [{key: entry[key] for key in entry if key != "what"} for entry in plan["communication"]]


def main(old, new):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w", encoding="utf-8") as out:
            out.write("".join(f"Paragraph {i} of a text that has {i * i} words.\n\n" for i in range(2000)))
        run_file = os.path.join(folder, "run.toml")
        with open(run_file, "w", encoding="utf-8") as out:
            out.write(f"[data]\npath = [{json.dumps(text)}]\n")
        for i, (name, layout) in enumerate(LAYOUTS.items()):
            before, after = (train(program, layout, run_file, os.path.join(folder, f"{i}_{which}"))
                             for which, program in enumerate((old, new)))
            equal = len(before) == STEPS and before == after
            same_plan = planned_bytes(old, layout, run_file) == planned_bytes(new, layout, run_file)
            wrong += not (equal and same_plan)
            print(f"{name:45} losses and norms of {len(before)} steps {'equal' if equal else 'DIFFER'}, "
                  f"planned bytes {'equal' if same_plan else 'DIFFER'}", flush=True)
            if not equal:
                print("  before", before, "\n  after ", after)
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
