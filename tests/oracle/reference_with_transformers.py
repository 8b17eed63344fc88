"""Runs the three commands of docs/verify.md: `orthant verify --write-reference`, then transformers on the same tokens and
weights, then `orthant verify --reference`, for models of several families. Controls: another learning rate must be seen in
later steps, and another gradient in the first.

    reference_with_transformers.py --build build [--models Llama GPT2]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from venv_python import use_the_tests_python

use_the_tests_python()
try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
RUN_FILE = """
[training]
seq_len = 32
global_batch_size = 4
local_batch_size = 2
steps = 20
[run]
ranks = 2
[lr_scheduler]
warmup_steps = 2
[optimizer]
lr = 1e-3
[data]
path = ["text.txt"]
tokenizer = "byte"
"""
SIZES = dict(vocab_size=300, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False)
MODELS = {
    "Llama": dict(SIZES),
    "Qwen2": dict(SIZES, tie_word_embeddings=True),
    "Phi3": dict(SIZES, pad_token_id=None),
    "GPT2": dict(vocab_size=300, n_embd=48, n_layer=2, n_head=4, n_positions=64),  # with dropout, which no side applies
}


def run(*command, folder, code=0):
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"})
    if done.returncode != code:
        sys.exit(f"{command} ended with {done.returncode} instead of {code}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def make_model(name, folder):
    torch.manual_seed(3)
    config = getattr(transformers, name + "Config")(**MODELS[name])
    model_class = "GPT2LMHeadModel" if name == "GPT2" else name + "ForCausalLM"
    getattr(transformers, model_class)(config).save_pretrained(folder / "model")


def compare(orthant, folder, code=0):
    return json.loads(run(orthant, "verify", "run.toml", "--hf", "model", "--json", "--reference", "theirs.safetensors",
                          folder=folder, code=code))


def check(orthant, folder, name):
    make_model(name, folder)
    run(orthant, "verify", "run.toml", "--hf", "model", "--write-reference", "ours.safetensors", folder=folder)
    script = [sys.executable, SOURCE / "examples/transformers_reference.py"]
    run(*script, "model", "ours.safetensors", "theirs.safetensors", folder=folder)
    found = compare(orthant, folder)["reference"]
    errors = [step["loss_relative_error"] for step in found["steps"]]
    print(f"{name}: {found['gradients']} gradients, largest error {found['worst_gradient_relative_error']:.1e} "
          f"(bound {found['bound']:.1e}), errors of losses {', '.join(f'{error:.1e}' for error in errors)}")
    # The updates are the same, too: with half of the learning rate, the loss of step 3 moves by more than 1e-4 (below).
    assert len(errors) == 3 and max(errors) < 1e-5, errors
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default="build")
    parser.add_argument("--models", nargs="*", default=["Llama"], choices=MODELS)
    arguments = parser.parse_args()
    orthant = arguments.build.resolve() / "orthant"
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "run.toml").write_text(RUN_FILE)
            (folder / "text.txt").write_text("".join(f"Line {i} of {i * i % 89} lines.\n\n" for i in range(400)))
            check(orthant, folder, name)
            if name != "Llama":
                continue
            # Controls: half of the learning rate shows in step 2, and another weight in the first gradients.
            ours = folder / "ours.safetensors"
            tensors = load_file(folder / "theirs.safetensors")
            original = load_file(ours)
            with_metadata = json.loads(ours.read_bytes()[8:8 + int.from_bytes(ours.read_bytes()[:8], "little")])
            halved = {key: value / 2 if key.endswith("learning_rate") else value for key, value in original.items()}
            save_file(halved, folder / "halved.safetensors", metadata=with_metadata["__metadata__"])
            run(sys.executable, SOURCE / "examples/transformers_reference.py", "model", "halved.safetensors",
                "theirs.safetensors", folder=folder)
            moved = [step["loss_relative_error"] for step in compare(orthant, folder)["reference"]["steps"]]
            assert moved[0] < 1e-5 and moved[2] > 1e-4, moved
            gradient = "step_1.gradient.model.layers.1.self_attn.k_proj.weight"
            tensors[gradient] = tensors[gradient].roll(1, 0)
            save_file(tensors, folder / "theirs.safetensors", metadata={"dtype": "float32"})
            found = compare(orthant, folder, code=1)["reference"]
            assert "layers.1.self_attn.k_proj.weight" in found["first_difference"], found


if __name__ == "__main__":
    main()
