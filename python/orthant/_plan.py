"""Plans of runs."""
from __future__ import annotations

import json
import os
from typing import Any, NamedTuple, Optional, Union

from ._library import Answer
from ._run import Run, all_settings, request_of


class Memory(NamedTuple):
    """Peak bytes of one rank's tensors. The total does not contain `host` (bytes offloaded to the memory of the host)
    and `host_copies` (bytes copied to and from the host in a step)."""

    total: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    working: int
    host: int
    host_copies: int


def _ranks(text: str) -> list[int]:
    """The ranks of a text such as "0-7, 16"."""
    found: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


class Plan:
    """A planned run, as `plan()` returns it. `str(plan)` is the page that `orthant plan` prints."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._json: dict[str, Any] = json.loads(answer.text("json"))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self._json["ranks"])

    @property
    def mesh(self) -> dict[str, int]:
        """Size of each mesh axis, from inner to outer."""
        return {axis["axis"]: axis["size"] for axis in self._json["mesh"]}

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return int(self._json["parameters"]["count"])

    @property
    def step_seconds(self) -> Optional[float]:
        """Time of an optimizer step; None if the plan is for no known hardware."""
        return self._json.get("step_seconds")

    @property
    def fits(self) -> Optional[bool]:
        """Whether the rank that needs most memory fits a device; None if the plan is for no known hardware."""
        return self._json.get("fits")

    @property
    def memory(self) -> list[Memory]:
        """Peak memory by rank."""
        return self._by_rank(lambda group: Memory(**group["memory_bytes"]))

    @property
    def sent_bytes(self) -> list[int]:
        """Bytes that a rank sends in a step, by rank."""
        return self._by_rank(lambda group: group["communication_bytes"])

    @property
    def warnings(self) -> list[str]:
        """Warnings about ranks without work, and about settings without effect."""
        return list(json.loads(self._answer.text("warnings")))

    def to_dict(self, *sections: str) -> dict[str, Any]:
        """Returns the object of `orthant plan --json`, or with the sections of `--show`: "memory", "communication",
        "schedule", "layouts"."""
        return dict(json.loads(self._answer.text("json", show=_checked(sections) or ["all"])))

    def page(self, *sections: str) -> str:
        """Returns the page of `orthant plan`, with the sections of `--show`."""
        return self._answer.text("page", show=_checked(sections))

    def run_file(self) -> str:
        """Returns the run file with all values and their sources."""
        return self._answer.text("run_file")

    def to_svg(self) -> str:
        """Returns a drawing of the schedule, and of the memory of the rank that needs most."""
        return self._answer.text("svg")

    def _by_rank(self, read: Any) -> list[Any]:
        found: list[Any] = [None] * self.ranks
        for group in self._json["classes"]:
            value = read(group)
            for rank in _ranks(group["ranks"]):
                found[rank] = value
        return found

    def __str__(self) -> str:
        return self.page()

    def __repr__(self) -> str:
        parts = [f"{self.ranks} ranks", f"{self.parameters:,} parameters",
                 f"{max(memory.total for memory in self.memory):,} bytes on the largest rank"]
        if self.step_seconds is not None:
            parts += [f"{self.step_seconds:.4g} s a step", "fits" if self.fits else "does not fit"]
        return f"<orthant.Plan: {', '.join(parts)}>"


def _checked(sections: tuple[str, ...]) -> list[str]:
    known = ("memory", "communication", "schedule", "layouts", "all")
    for section in sections:
        if section not in known:
            raise ValueError(f"the sections of a plan are {', '.join(known)}, not {section!r}")
    return list(sections)


def plan(run: Optional[Run] = None, *, hf: Optional[Union[str, "os.PathLike[str]"]] = None,
         ranks: Optional[int] = None, seq_len: Optional[int] = None, global_batch: Optional[int] = None,
         hardware: Optional[str] = None, **settings: Any) -> Plan:
    """Plans a run, as `orthant plan` does: its memory, messages, schedule and step time.

    `run` is the path of a run file, its text (which has more than one line), or a dictionary with its sections. `hf` is
    a config.json of Hugging Face, or the directory that contains one. Other keyword arguments set keys of the run file,
    as on the command line: `training={"steps": 20}`, or `**{"training.steps": 20}`. The names before them are short for
    run.ranks, training.seq_len, training.global_batch_size and run.hardware.

    Raises ConfigError for a run that is impossible, and DataError for a damaged file.

    >>> import orthant
    >>> model = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "vocab_size": 32000}
    >>> plan = orthant.plan({"model": model, "data": {"tokenizer": "train:32000"}}, ranks=8, hardware="h100-8x",
    ...                     parallelism={"zero_stage": 3})
    >>> plan.parameters, plan.fits, len(plan.memory)
    (55976448, True, 8)
    >>> orthant.plan({"model": model}, ranks=3, parallelism={"tensor_parallel_degree": 2})
    Traceback (most recent call last):
    ...
    orthant.ConfigError: parallelism.tensor_parallel_degree = 2 (command line): its 2 ranks must divide the 3 ranks of \
the run; set it to 1, or run.ranks to 2
    """
    words = all_settings(settings, ranks=ranks, seq_len=seq_len, global_batch=global_batch, hardware=hardware)
    return Plan(Answer("orthant_plan", request_of(run, hf, words)))
