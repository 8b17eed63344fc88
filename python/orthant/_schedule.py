"""Pipeline schedules."""
from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any

from ._library import Answer


class Schedule:
    """For each pipeline rank the ordered list of its passes. `str(schedule)` draws it for a terminal."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        found: dict[str, Any] = json.loads(answer.text("json"))
        #: Name of the schedule.
        self.name: str = found["name"]
        #: Numbers of pipeline ranks, of stages, and of microbatches.
        self.ranks: int = found["ranks"]
        self.stages: int = found["stages"]
        self.microbatches: int = found["microbatches"]
        #: Pipeline rank by stage.
        self.stage_owner: list[int] = found["stage_owner"]
        #: Time from the first pass to the last one, if messages take no time, in the unit of the durations.
        self.makespan: float = found["makespan"]
        #: Fraction of the time of all ranks in which they do not compute.
        self.bubble: float = found["bubble"]
        #: Largest number of microbatches whose activations a rank holds, counted once for each stage, by rank.
        self.peak_live_passes: list[int] = found["peak_live_passes"]

    @classmethod
    def from_csv(cls, text: str, *, durations: Sequence[float] = (1, 1, 1)) -> Schedule:
        """Reads a schedule in the CSV form of torch.distributed.pipelining, and checks it.

        Raises DataError for a cell that is no pass, and ConfigError for a schedule that would deadlock, or would not do
        the work of every microbatch exactly once.

        >>> import orthant
        >>> orthant.Schedule.from_csv("0F0,0F1,,,0B0,0B1\\n,1F0,1B0,1F1,1B1,\\n").microbatches
        2
        >>> orthant.Schedule.from_csv("0F0,0F1,0B0\\n1F0,1B0,1F1,1B1\\n")
        Traceback (most recent call last):
        ...
        orthant.ConfigError: the schedule cannot be carried out:
          0B1 is missing after 0F1 (line 1, cell 2)
        """
        return cls(Answer("orthant_schedule", {"csv": text, "durations": list(map(float, durations))}))

    def to_csv(self, *, messages: bool = False) -> str:
        """Returns the schedule in the CSV form of torch.distributed.pipelining: one line for each rank.

        PyTorch's `_PipelineScheduleRuntime._load_csv()` reads the form without messages, and adds them itself.
        """
        return self._answer.text("csv" if messages else "pytorch_csv")

    def to_svg(self) -> str:
        """Returns a drawing of the schedule."""
        return self._answer.text("svg")

    def __str__(self) -> str:
        return self._answer.text("grid")

    def __repr__(self) -> str:
        return (f"<orthant.Schedule {self.name}: {self.ranks} ranks, {self.stages} stages, "
                f"{self.microbatches} microbatches, bubble {100 * self.bubble:.1f} %>")


def schedule(name: str, *, ranks: int, microbatches: int, stages_per_rank: int = 0,
             durations: Sequence[float] = (1, 1, 1)) -> Schedule:
    """Makes a published pipeline schedule: gpipe, 1f1b, interleaved_1f1b, zb_h1, zb_h2, zb_v, v_half, v_min, or
    dual_pipe_v.

    `stages_per_rank` is 0 for the number that the schedule needs. `durations` are those of a forward, of a backward for
    the input, and of a backward for the weights, in any unit.

    Raises ConfigError for an unknown name or impossible numbers.

    >>> import orthant
    >>> schedule = orthant.schedule("1f1b", ranks=2, microbatches=3)
    >>> print(schedule.to_csv(), end="")
    0F0,0F1,0B0,0F2,0B1,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
    >>> schedule.makespan, schedule.peak_live_passes
    (12.0, [2, 1])
    """
    return Schedule(Answer("orthant_schedule", {
        "name": name, "ranks": operator.index(ranks), "microbatches": operator.index(microbatches),
        "stages_per_rank": operator.index(stages_per_rank), "durations": list(map(float, durations))}))
