"""The planted mistakes, one module a lesson: each must fail in the check meant to catch it.

@wrong("lesson_02.ring_all_reduce", says="whole tensors travel")
def passes_whole_tensors(tensor): ...
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wrong:
    """One planted mistake: the answers that a check is called with, and what its message must say (a regex)."""

    name: str
    check: str
    says: str
    answers: tuple[Any, ...]


PLANTED: list[Wrong] = []


def wrong(check: str, *, says: str) -> Callable:
    """Plants the decorated function as a wrong answer to `check`, whose failure must match `says`."""

    def plant(function: Callable) -> Callable:
        PLANTED.append(Wrong(function.__name__, check, says, (function,)))
        return function

    return plant


def wrong_values(check: str, name: str, *answers: Any, says: str) -> None:
    """Plants answers that are not one function."""
    PLANTED.append(Wrong(name, check, says, answers))


def planted() -> list[Wrong]:
    """Every planted mistake of every lesson."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return PLANTED
