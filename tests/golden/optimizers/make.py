"""Writes the weights of six elements after each of four steps of torch.optim (torch 2.13, float64), for several settings,
into torch.txt in this folder. They are the reference for our optimizers. torch.optim.Muon orthogonalizes in bfloat16;
here this rounding is switched off.

  .venv/bin/python tests/golden/optimizers/make.py
"""
import math
import os

import torch

ELEMENTS, STEPS = 6, 4
MUON = {"momentum": 0.8, "weight_decay": 0.3, "adjust_lr_fn": "match_rms_adamw"}
SETTINGS = [  # name in the run file, shape, class, arguments
    ("adamw", [6], torch.optim.AdamW, {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3}),
    ("sgd", [6], torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.3}),
    ("sgd", [6], torch.optim.SGD, {"momentum": 0.0, "weight_decay": 0.3}),
    ("sgd", [6], torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.0}),
    ("muon", [2, 3], torch.optim.Muon, MUON),
    ("muon", [3, 2], torch.optim.Muon, MUON),
]
torch.Tensor.bfloat16 = torch.Tensor.clone

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch.txt"), "w", encoding="utf-8") as file:
    file.write("# name, shape, momentum, weight decay, step, weights: made by make.py of this folder\n")
    for name, shape, kind, arguments in SETTINGS:
        cosines = torch.tensor([math.cos(i) for i in range(ELEMENTS)], dtype=torch.float64)
        weights = cosines.view(shape).requires_grad_()
        optimizer = kind([weights], lr=1.0, **arguments)
        for step in range(1, STEPS + 1):
            optimizer.param_groups[0]["lr"] = 0.01 * step
            sines = torch.tensor([math.sin(step + 2 * i) for i in range(ELEMENTS)], dtype=torch.float64)
            weights.grad = sines.view(shape)
            optimizer.step()
            file.write(" ".join([name, "x".join(map(str, shape)), str(arguments.get("momentum", 0.8)),
                                 str(arguments["weight_decay"]), str(step)] +
                                [repr(value) for value in weights.flatten().tolist()]) + "\n")
