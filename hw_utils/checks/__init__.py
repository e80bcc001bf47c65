"""The checks, a folder a lesson: `checks.lesson_02.ring_all_reduce(ring_all_reduce)`.

In each folder `__init__` says which module has which check; a module that no check comes from judges for the others.
Stands on launch, simulate, virtual, threads, material and core.
"""

from __future__ import annotations

import importlib


def __getattr__(name: str):
    if name.startswith("lesson_"):
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"there is no {name} in hw_utils.checks")
