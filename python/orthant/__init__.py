"""Plans, checks and compares layouts for training transformers over many devices, without a device.

`plan()` computes memory, messages and step time of a run before any process starts. `search()` finds the fastest
layouts that fit. `schedule()` makes pipeline schedules for torch.distributed.pipelining. `verify()` runs the program
`orthant`, which compares a layout with one device. Only `verify()` needs the program, and nothing here needs torch.

All functions may be called from several threads, and planning releases Python's global lock.
"""
from ._errors import ConfigError, DataError, Error
from ._library import VERSION as __version__
from ._plan import Memory, Plan, plan
from ._schedule import Schedule, schedule
from ._search import Layout, Search, search
from ._verify import Verification, verify

__all__ = ["ConfigError", "DataError", "Error", "Layout", "Memory", "Plan", "Schedule", "Search", "Verification",
           "__version__", "plan", "schedule", "search", "verify"]
