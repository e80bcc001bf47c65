"""Right answers that nobody planned, one module a lesson: each must pass its check, visible and hidden cases.

@right("lesson_02.ring_all_reduce")
def posts_both_at_once(tensor): ...
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Right:
    """One alternative: the answers that a check is called with."""

    name: str
    check: str
    answers: tuple[Any, ...]


ALTERNATIVES: list[Right] = []


def right(*checks: str) -> Callable:
    """Enters the decorated function or class as a right answer to each of `checks`."""

    def enter(answer: Callable) -> Callable:
        ALTERNATIVES.extend(Right(answer.__name__, check, (answer,)) for check in checks)
        return answer

    return enter


def right_values(check: str, name: str, *answers: Any) -> None:
    """Enters answers that are not one function."""
    ALTERNATIVES.append(Right(name, check, answers))


def alternatives() -> list[Right]:
    """Every right alternative of every lesson."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return ALTERNATIVES
