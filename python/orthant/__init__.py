"""Plans, checks and compares layouts for training transformers over many devices, without a device.

`plan()` computes memory, messages and step time of a run before any process starts. `search()` finds the fastest
layouts that fit. `schedule()` makes pipeline schedules for torch.distributed.pipelining. `verify()` runs the program
`orthant`, which compares a layout with one device, and only it needs the program. `ring_attention()` is a reference for
tests of sequence parallelism in PyTorch, and only it and `unshard_sequence()` need torch.

All functions may be called from several threads, and planning releases Python's global lock.
"""
from ._errors import ConfigError, DataError, Error
from ._library import VERSION as __version__
from ._plan import Memory, Plan, plan
from ._ring_attention import ring_attention
from ._schedule import Schedule, schedule
from ._search import Layout, Search, search
from ._sequence import held_positions, shard_sequence, unshard_sequence
from ._verify import Verification, verify

__all__ = ["ConfigError", "DataError", "Error", "Layout", "Memory", "Plan", "Schedule", "Search", "Verification",
           "__version__", "held_positions", "plan", "ring_attention", "schedule", "search", "shard_sequence",
           "unshard_sequence", "verify"]
