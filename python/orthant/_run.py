"""Runs as arguments: paths, texts, dictionaries, models of Hugging Face, and settings."""
from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from ._errors import ConfigError

Run = Union[str, "os.PathLike[str]", Mapping[str, Any]]


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {"section.key": value} for settings that may also be {"section": {"key": value}}. A value may be a
    mapping, too."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and "." not in key:
            found.update((f"{key}.{name}", each) for name, each in value.items())
        else:
            found[key] = value
    return found


def word(value: Any) -> str:
    """Returns a value as the command line writes it: true, 0.5, 2,2,1, or {books = ["a.txt"]}."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return toml_value(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(word, value))
    return str(value)


def toml_value(value: Any) -> str:
    """Returns a value as TOML writes it. A mapping becomes a table on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (bool, int, float)):
        return word(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(os.fspath(value), ensure_ascii=False)


def run_file_text(run: Mapping[str, Any]) -> str:
    """Returns the run file with these settings. A key without a section is written without one, and is refused."""
    sections: dict[str, list[str]] = {"": []}
    for key, value in flat(run).items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {toml_value(value)}")
    return "\n".join(line for section, lines in sections.items()
                     for line in ([f"[{section}]"] if section else []) + lines) + "\n"


def run_source(run: Run) -> dict[str, str]:
    """Returns the part of a request that names the run file: its path or its text."""
    if isinstance(run, Mapping):
        return {"text": run_file_text(run)}
    if isinstance(run, str) and "\n" in run:
        return {"text": run}
    path = os.fspath(run)
    if path.endswith(".json"):
        raise ConfigError(f"{path} is no run file; to plan a model of Hugging Face, use hf={path!r} and ranks=8")
    return {"path": path}


def all_settings(settings: Mapping[str, Any], **named: Any) -> list[str]:
    """Returns settings as the command line writes them. Named ones that are None are left out."""
    keys = {"ranks": "run.ranks", "seq_len": "training.seq_len", "global_batch": "training.global_batch_size",
            "hardware": "run.hardware"}
    given = {keys[name]: value for name, value in named.items() if value is not None}
    return [f"{key}={word(value)}" for key, value in {**given, **flat(settings)}.items()]


def request_of(run: Optional[Run], hf: Optional[Union[str, "os.PathLike[str]"]], settings: list[str]) -> dict[str, Any]:
    """Returns the request for a plan or a search."""
    if (run is None) == (hf is None):
        raise TypeError("give either a run (a path, a text or a dictionary) or hf, the path of a config.json")
    if run is not None:
        return {**run_source(run), "settings": settings}
    if not any(setting.startswith("run.ranks=") for setting in settings):
        raise ConfigError("hf requires the number of devices; add ranks=8")
    return {"hf": os.fspath(hf), "settings": settings}  # type: ignore[arg-type]
