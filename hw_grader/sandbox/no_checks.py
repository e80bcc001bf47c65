"""What stands in the place of `hw_utils.checks` where a student's code runs: the names, and nothing behind them.

Judges hold formulas that say what is right. Check cells are not run there; a call in a student's own cell says so.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

NAME = "hw_utils.checks"


class NoCheck:
    """Called like a check; judges nothing."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *answers: Any, **options: Any) -> None:
        print(f"{self.__name__}: not run for grading here; the check cells are")


class _Names(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == NAME:
            return importlib.import_module(f"{NAME}.{name}")
        return NoCheck(f"{self.__name__}.{name}".removeprefix("hw_utils."))


class _Finder:
    """Finds every module of that name, and makes it of nothing."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_ours = name == NAME or name.startswith(f"{NAME}.")
        return importlib.machinery.ModuleSpec(name, _Finder, is_package=True) if is_ours else None

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Names(spec.name)

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        """There is nothing in it."""


def install() -> None:
    """From now on this process, and what it forks, has no other checks."""
    known = [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]
    if known:
        raise RuntimeError(f"{known[0]} is imported already; nothing can be taken out of a process's memory")
    sys.meta_path.insert(0, _Finder)
