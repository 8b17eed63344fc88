"""Evaluates a trained and an untrained model with lm-evaluation-harness, by the tasks and the command of
docs/evaluation.md. The trained one must answer all questions, and have fewer bits per byte.

    lm_eval.py --build build

Needs a python3 with lm_eval, first on PATH or named by ORTHANT_LM_EVAL_PYTHON; else it is skipped (exit code 77).
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
COLORS, THINGS = ("red", "green", "blue"), ("door", "key", "river", "lamp", "stone")
RUN_FILE = """
[run]
ranks = 1
[model]
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 128
[training]
seq_len = 128
steps = 60
global_batch_size = 8
[optimizer]
lr = 1e-2
[data]
path = ["text.txt"]
tokenizer = "train:300"
validation = 0
[validation]
freq = 0
"""


def text(i):
    return f"The {COLORS[i % 3]} {THINGS[i * i % 5]} number {i * i % 97} leads to room {i % 13}."


def tasks_of_the_page():
    """Returns the two tasks in docs/evaluation.md by name."""
    page = (SOURCE / "docs/evaluation.md").read_text()
    blocks = re.findall(r"(?m)(?:^    .*\n)+", page)
    tasks = ["".join(line[4:] for line in block.splitlines(True)) for block in blocks if block.startswith("    task: ")]
    return {re.match(r"task: (\w+)", task)[1]: task for task in tasks}


def evaluate(python, model, output, folder):
    done = subprocess.run([python, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={model},dtype=float32",
                           "--tasks", "rooms,held_out", "--include_path", "tasks", "--device", "cpu", "--batch_size", "8",
                           "--output_path", output], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
    if done.returncode != 0:
        sys.exit(f"lm_eval failed:\n{done.stderr[-3000:]}")
    file = next((folder / output).rglob("results_*.json"))
    results = json.loads(file.read_text())["results"]
    return results["rooms"]["acc,none"], results["held_out"]["bits_per_byte,none"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default="build")
    orthant = parser.parse_args().build.resolve() / "orthant"
    python = os.environ.get("ORTHANT_LM_EVAL_PYTHON", "python3")
    if subprocess.run([python, "-c", "import lm_eval"], capture_output=True).returncode != 0:
        print(f"skipped: {python} has no lm_eval; set ORTHANT_LM_EVAL_PYTHON to a python3 that has it")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "run.toml").write_text(RUN_FILE)
        (folder / "text.txt").write_text("\n\n".join(text(i) for i in range(400)))
        (folder / "tasks").mkdir()
        for task, content in tasks_of_the_page().items():
            (folder / f"tasks/{task}.yaml").write_text(content)
        words = [" number", " leads", " room"]  # the word after the place where a question ends
        questions = [{"question": text(i).split(words[i % 3])[0], "answers": words, "answer": i % 3}
                     for i in range(401, 431)]
        (folder / "rooms.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
        (folder / "held_out.jsonl").write_text("".join(json.dumps({"text": text(i)}) + "\n" for i in range(401, 421)))
        found = {}
        for model, steps, rate in (("trained", 60, 1e-2), ("untrained", 1, 1e-9)):
            subprocess.run([orthant, "train", "run.toml", f"training.steps={steps}", f"job.dump_folder={model}",
                            f"optimizer.lr={rate}"], cwd=folder, check=True, capture_output=True)
            found[model] = evaluate(python, f"{model}/checkpoints/latest", f"{model}-results", folder)
            print(f"{model}: accuracy {found[model][0]:.2f}, {found[model][1]:.3f} bits per byte")
        assert found["trained"][0] == 1 and found["untrained"][0] < 0.5, found
        assert found["trained"][1] < found["untrained"][1] / 2, found


if __name__ == "__main__":
    main()
