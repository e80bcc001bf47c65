"""Run a function from a notebook cell on N ranks, watch every message, check the answer.

from hw_utils import launch, simulate, Network, checks
"""

from __future__ import annotations

import importlib
import sys

from hw_utils.processes.copy_on_write import no_collections

try:
    with no_collections():
        from hw_utils.core import errors
        from hw_utils.processes import start_by_fork

        if start_by_fork.available():
            start_by_fork.start_early()  # it imports torch while this process does
        from hw_utils.core.errors import CheckFailed, Deadlock, TimedOut, WorkerFailed
        from hw_utils.core.hardware import Cluster, Fold, Network
        from hw_utils.core.run_result import Run
        from hw_utils.core.trace import Event, Trace
        from hw_utils.launch import launch
        from hw_utils.simulate import simulate
except ModuleNotFoundError as error:
    if sys.argv[0] != "-m":  # python -m hw_utils doctor
        raise
    sys.exit(f"FIX   {error}. This Python is {sys.executable}: use the one in the course's .venv")

__version__ = "0.2.0"  # the one place: pyproject.toml takes it from here

__all__ = [
    "CheckFailed", "Cluster", "Deadlock", "Event", "Fold", "Network", "Run", "TimedOut", "Trace", "WorkerFailed",
    "checks", "data", "launch", "memory", "models", "plots", "simulate",
]  # fmt: skip

_LATE = {  # imported when first used: they import much
    "checks": "hw_utils.checks",
    "data": "hw_utils.material.data",
    "memory": "hw_utils.core.memory",
    "models": "hw_utils.material.models",
    "plots": "hw_utils.pictures.plots",
}


if not start_by_fork.available():
    start_by_fork.start_early()  # several interpreters, which would take this one's cores
errors.say_what_is_missing()


def __getattr__(name: str):
    if name in _LATE:
        return importlib.import_module(_LATE[name])
    raise AttributeError(f"there is no {name} in hw_utils; see its __all__")
