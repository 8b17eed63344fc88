"""Writes the weights of six elements after each of four steps of torch.optim (torch 2.13, float64), for several settings,
into torch.txt in this folder. They are the reference for our optimizers.

  .venv/bin/python tests/golden/optimizers/make.py
"""
import math
import os

import torch

ELEMENTS, STEPS = 6, 4
SETTINGS = [  # name in the run file, class, arguments
    ("adamw", torch.optim.AdamW, {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3}),
    ("sgd", torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.3}),
    ("sgd", torch.optim.SGD, {"momentum": 0.0, "weight_decay": 0.3}),
    ("sgd", torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.0}),
]

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch.txt"), "w", encoding="utf-8") as file:
    file.write("# name, momentum, weight decay, step, weights: made by make.py of this folder\n")
    for name, kind, arguments in SETTINGS:
        weights = torch.tensor([math.cos(i) for i in range(ELEMENTS)], dtype=torch.float64, requires_grad=True)
        optimizer = kind([weights], lr=1.0, **arguments)
        for step in range(1, STEPS + 1):
            optimizer.param_groups[0]["lr"] = 0.01 * step
            weights.grad = torch.tensor([math.sin(step + 2 * i) for i in range(ELEMENTS)], dtype=torch.float64)
            optimizer.step()
            file.write(" ".join([name, str(arguments.get("momentum", 0.8)), str(arguments["weight_decay"]), str(step)] +
                                [repr(value) for value in weights.tolist()]) + "\n")
