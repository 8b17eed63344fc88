"""Comparison of a layout with one device, by the program `orthant`."""
from __future__ import annotations

import json
import operator
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any, Optional

from ._errors import Error
from ._run import Run, all_settings, run_source


@dataclass(frozen=True)
class Verification:
    """The result of `orthant verify`. It is true if the layout computes what one device computes."""

    #: Whether all errors are within their bounds.
    ok: bool
    #: Number of optimizer steps that were compared.
    steps: int
    #: `oracle`, `layout` and `relative_error` of the loss with the largest error, and its `step`.
    loss: dict[str, Any]
    #: `worst_name`, `worst_relative_error`, `bound`, `step` and `rank` of the gradient with the largest error.
    gradients: dict[str, Any]
    #: The same of the weights.
    weights: dict[str, Any]
    #: A sentence about the first tensor that differs; empty if `ok`.
    first_difference: str

    def __bool__(self) -> bool:
        return self.ok


def find_program() -> str:
    """Returns the path of the program `orthant`."""
    given = os.environ.get("ORTHANT_PROGRAM")
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "orthant")
    found = given or shutil.which(beside) or shutil.which("orthant")
    if found and shutil.which(found):
        return found
    place = f"ORTHANT_PROGRAM names {given}, which is" if given else "the program orthant is"
    raise Error(f"{place} not an installed program; verify() requires it: build it with `make build` from the source "
                "of Orthant, and put its folder into PATH or its path into ORTHANT_PROGRAM")


def verify(run: Run, *, steps: int = 3, ranks: Optional[int] = None, seq_len: Optional[int] = None,
           global_batch: Optional[int] = None, **settings: Any) -> Verification:
    """Runs `orthant verify`: compares the layout of a run with one device, in float64 unless training.dtype is given.

    `run`, `ranks`, `seq_len`, `global_batch` and the settings are those of `plan()`; `steps` is the number of steps to
    compare. The program `orthant` must be on PATH, or its path in ORTHANT_PROGRAM. Raises Error with the message of the
    program if it refuses the run, or if it is not installed.

    >>> import orthant
    >>> model = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    ...          "num_key_value_heads": 2}
    >>> training = {"seq_len": 16, "global_batch_size": 4, "local_batch_size": 2}
    >>> with open("text.txt", "w") as file:
    ...     _ = file.write("A few words.\\n" * 100)
    >>> run = {"run": {"ranks": 2}, "model": model, "data": {"path": "text.txt"}, "training": training}
    >>> result = orthant.verify(run, steps=1)
    >>> result.ok, result.gradients["worst_relative_error"] < 1e-10
    (True, True)
    """
    words = all_settings(settings, ranks=ranks, seq_len=seq_len, global_batch=global_batch)
    with tempfile.TemporaryDirectory(prefix="orthant-") as folder:
        source = run_source(run)
        path = source.get("path") or os.path.join(folder, "run.toml")
        if "text" in source:
            with open(path, "w", encoding="utf-8") as file:
                file.write(source["text"])
        done = subprocess.run([find_program(), "verify", path, "--json", "--steps", str(operator.index(steps)),
                               *words], stdin=subprocess.DEVNULL, capture_output=True,
                              encoding="utf-8", errors="replace")
    try:
        found = json.loads(done.stdout)
        return Verification(**{name: found[name] for name in Verification.__dataclass_fields__})
    except (ValueError, KeyError):
        _, marker, message = done.stderr.rpartition("error: ")
        raise Error(message.strip() if marker else f"orthant verify ended with exit code {done.returncode} and without "
                    f"a result: {done.stderr.strip()}") from None
