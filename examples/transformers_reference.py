#!/usr/bin/env python3
"""Trains a model of Hugging Face's transformers on the tokens of a file that `orthant verify --write-reference` wrote, and
writes the steps in the same form, for `orthant verify --reference`. docs/verify.md explains the three commands.

  orthant verify run.toml --hf MODEL --write-reference ours.safetensors
  python3 transformers_reference.py MODEL ours.safetensors theirs.safetensors
  orthant verify run.toml --hf MODEL --reference theirs.safetensors

Learning rates come from the file, and the settings of AdamW and of clipping from the run file in it.
"""
import argparse
import tomllib

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="the Hugging Face directory that the run begins with")
parser.add_argument("ours", help="file of orthant verify --write-reference")
parser.add_argument("theirs", help="file to write")
parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
arguments = parser.parse_args()

with safe_open(arguments.ours, "pt") as file:
    given = {name: file.get_tensor(name) for name in file.keys() if ".gradient." not in name}
    run = tomllib.loads(file.metadata()["run_file"])
settings = run["optimizer"]
if settings.get("name", "adamw") != "adamw":
    parser.error(f'optimizer.name = "{settings["name"]}" must be "adamw" here')

model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype),
                                             attn_implementation="eager")
model.eval()  # without the dropout of its config.json, as Orthant trains it
matrices = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() <= 1]
decay = settings["weight_decay"]
optimizer = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": decay},
     {"params": others, "weight_decay": decay if settings["weight_decay_on"] == "all" else 0.0}],
    betas=(settings["beta1"], settings["beta2"]), eps=settings["eps"])
max_norm = run["training"]["max_norm"] or float("inf")

made = {}
step = 1
while f"step_{step}.tokens" in given:
    tokens, labels = given[f"step_{step}.tokens"], given[f"step_{step}.labels"]  # labels are shifted already
    logits = model(input_ids=tokens, use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    if step == 1:
        made.update({f"step_1.gradient.{name}": p.grad.float().clone() for name, p in model.named_parameters()})
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for group in optimizer.param_groups:
        group["lr"] = given[f"step_{step}.learning_rate"].item()
    optimizer.step()
    made.update({f"step_{step}.tokens": tokens, f"step_{step}.labels": labels,
                 f"step_{step}.loss": loss.detach().double().reshape(1),
                 f"step_{step}.gradient_norm": norm.double().reshape(1)})
    print(f"step {step}: loss {loss.item():.6f}, gradient norm {norm.item():.6f}")
    step += 1
save_file(made, arguments.theirs, metadata={"format": "pt", "dtype": arguments.dtype})
