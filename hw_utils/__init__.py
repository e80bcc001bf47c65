"""Run a function from a notebook cell on N ranks, watch every message, check the answer.

from hw_utils import launch, simulate, Network, checks
"""

from __future__ import annotations

import importlib

from hw_utils import forkserver
from hw_utils.errors import CheckFailed, Deadlock, TimedOut, WorkerFailed
from hw_utils.launch import launch
from hw_utils.network import Network
from hw_utils.run import Run
from hw_utils.simulate import simulate
from hw_utils.trace import Event, Trace

__version__ = "0.1.0"

__all__ = [
    "CheckFailed", "Deadlock", "Event", "Network", "Run", "TimedOut", "Trace", "WorkerFailed",
    "checks", "data", "launch", "models", "plots", "simulate",
]  # fmt: skip

_LATE = {"checks", "data", "models", "plots"}  # imported when first used: they import much


forkserver.start_early()


def __getattr__(name: str):
    if name in _LATE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"there is no {name} in hw_utils; see its __all__")
