"""Searches for layouts."""
from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Optional, Union, overload

from ._errors import ConfigError
from ._library import Answer
from ._run import Run, all_settings, request_of


class Layout:
    """A layout that fits the devices."""

    def __init__(self, answer: Answer, index: int, found: dict[str, Any]) -> None:
        self._answer, self._index = answer, index
        #: Keys of the run file that the search sets, with their values.
        self.settings: dict[str, Any] = found["settings"]
        #: Time of an optimizer step.
        self.step_seconds: float = found["step_seconds"]
        #: Peak bytes of tensors on the rank that needs most.
        self.memory_bytes: int = found["memory_bytes"]
        #: FLOPs of the model per second as a fraction of the peak, if attention counts all pairs of tokens.
        self.mfu: float = found["mfu"]
        #: The same, if attention counts only the pairs of the mask.
        self.mfu_causal: float = found["mfu_causal"]

    def run_file(self) -> str:
        """Returns the run file with this layout. `orthant.plan()` takes this text."""
        return self._answer.text("run_file", index=self._index)

    def __repr__(self) -> str:
        return (f"<orthant.Layout: {self.step_seconds:.4g} s a step, {self.memory_bytes:,} bytes on the largest rank, "
                f"MFU {100 * self.mfu_causal:.1f} %>")


class Search(Sequence[Layout]):
    """The layouts that fit, in ascending order of step time. `str(search)` is the page of `orthant plan --search`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._json: dict[str, Any] = json.loads(answer.text("json"))
        self._layouts = [Layout(answer, index, found) for index, found in enumerate(self._json["search"])]

    @property
    def best(self) -> Layout:
        """The layout with the shortest step. Raises ConfigError with the least memory if no layout fits."""
        if not self._layouts:
            raise ConfigError(str(self).rstrip())
        return self._layouts[0]

    def to_dict(self) -> dict[str, Any]:
        """Returns the object of `orthant plan --search --json`: the plan of the best layout, and all that fit."""
        return dict(json.loads(self._answer.text("json", show=["all"])))

    @overload
    def __getitem__(self, index: int) -> Layout: ...
    @overload
    def __getitem__(self, index: slice) -> list[Layout]: ...
    def __getitem__(self, index: Union[int, slice]) -> Union[Layout, list[Layout]]:
        return self._layouts[index]

    def __len__(self) -> int:
        return len(self._layouts)

    def __str__(self) -> str:
        return self._answer.text("page")

    def __repr__(self) -> str:
        return f"<orthant.Search: {len(self)} layouts fit>"


def search(run: Optional[Run] = None, *, hf: Optional[Union[str, "os.PathLike[str]"]] = None,
           ranks: Optional[int] = None, seq_len: Optional[int] = None, global_batch: Optional[int] = None,
           hardware: Optional[str] = None, **settings: Any) -> Search:
    """Searches the layouts of a run for the shortest steps that fit the devices, as `orthant plan --search` does.

    The arguments are those of `plan()`. A search requires hardware, which a run on CUDA devices has by default. Keys of
    the layout that the run sets stay as they are. Raises ConfigError if no layout is legal.

    >>> import orthant
    >>> model = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "vocab_size": 32000}
    >>> run = {"model": model, "data": {"tokenizer": "train:32000"}}
    >>> found = orthant.search(run, ranks=8, hardware="h100-8x", parallelism={"pipeline_parallel_degree": 1})
    >>> found.best.step_seconds <= found[1].step_seconds
    True
    >>> orthant.plan(found.best.run_file()).step_seconds == found.best.step_seconds
    True
    """
    words = all_settings(settings, ranks=ranks, seq_len=seq_len, global_batch=global_batch, hardware=hardware)
    return Search(Answer("orthant_search", request_of(run, hf, words)))
