"""What can be changed in place, as it was: containers, attributes, tensors, caches, iterators, and what those hold."""

from __future__ import annotations

import collections
import functools
import itertools
import os
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from threading import local
from typing import Any

import numpy as np
import torch

_MOST_CELLS = 20_000
_QUIET = {
    "torch", "numpy", "greenlet", "cloudpickle", "scipy", "sklearn", "matplotlib", "PIL",
    "pandas",
    "joblib", "sympy", "networkx", "mpmath", "torchvision", "tqdm", "IPython", "pytest", "_pytest", "pluggy", "triton",
    "psutil", "requests", "yaml", "packaging", "setuptools", "pkg_resources", "six", "dateutil", "jinja2", "fsspec",
}  # fmt: skip
_FIXED = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, torch.dtype, torch.device, torch.Size,
    torch.layout, torch.memory_format, types.BuiltinFunctionType, types.ModuleType, types.CodeType, property,
    staticmethod, classmethod, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, os.PathLike, torch.Generator, np.dtype, np.generic,
)  # fmt: skip
_PLAIN = (list, set, bytearray, collections.deque, dict)
_ITERATORS = (itertools.count, itertools.cycle, itertools.chain, itertools.islice, enumerate, zip, map)


class Snapshot:
    """Cells and tables as they were when they were first seen; `difference` says what is no longer so."""

    def __init__(self) -> None:
        self.cells: list[tuple[Callable[[], Any], Any, str]] = []  # look, what it showed, what it is
        # A container, a copy of it, what it is, and which part of it counts, None: all of it.
        self.tables: list[tuple[Any, Any, str, Callable[[Any], Any] | None]] = []
        self.seen: set[int] = set()
        self.kept: list[Any] = []  # what is watched stays alive, so that an id stays its own
        self.is_too_much = False

    def difference(self) -> str:
        """What has changed, "" if nothing."""
        if self.is_too_much:
            return "more module globals than can be watched"
        what = ""
        try:
            for table, before, what, part in self.tables:
                if table != before and (part is None or part(table) != part(before)):
                    return what
            for look, before, what in self.cells:
                if look() != before:
                    return what
        except Exception:  # an array in a container: no single answer, and not the object that was there
            return what
        return ""

    def _add(self, look: Callable[[], Any], what: str) -> None:
        if len(self.cells) >= _MOST_CELLS:
            self.is_too_much = True
            return
        self.cells.append((look, look(), what))

    def add_table(self, table: Any, copy: Any, what: str, part: Callable[[Any], Any] | None = None) -> None:
        if len(self.tables) >= _MOST_CELLS:
            self.is_too_much = True
            return
        self.tables.append((table, copy, what, part))

    def watch_module(self, module: types.ModuleType) -> None:
        self.seen.add(id(module))
        self.kept.append(module)
        names = vars(module)
        self.add_table(names, dict(names), f"a global of the module {module.__name__}", _without_dunders)
        for name, value in list(names.items()):
            if not name.startswith("__"):
                self.watch(value, f"{name} of the module {module.__name__}", module.__name__)

    def watch(self, value: Any, what: str, home: str = "", depth: int = 0) -> None:
        """Everything in `value` that can be changed in place."""
        if id(value) in self.seen or is_own(value, _FIXED) or depth > 12 or self.is_too_much:
            return
        self.seen.add(id(value))
        self.kept.append(value)
        if is_own(value, type):
            if value.__module__ == home or is_watched(value.__module__):
                table = vars(value)
                self.add_table(table, dict(table), f"an attribute of the class {value.__qualname__}")
                for name, inner in list(table.items()):
                    self.watch(inner, f"{name} of the class {value.__qualname__}", home, depth + 1)
        elif is_own(value, torch.Tensor):
            self._add(lambda: (value._version, value.data_ptr() if value.layout is torch.strided else 0), what)
        elif is_own(value, np.ndarray):
            self._add(value.tobytes, what)
        elif is_own(value, types.FunctionType):
            if value.__module__ == home or is_watched(value.__module__):
                self._watch_function(value, what, home, depth)
        elif is_own(value, functools._lru_cache_wrapper):
            self._add(lambda: value.cache_info()[1:], f"{what} (a cache)")
        elif is_own(value, random.Random):
            self._add(value.getstate, what)
        elif is_own(value, np.random.Generator):
            self._add(lambda: repr(value.bit_generator.state), what)
        elif is_own(value, _ITERATORS):
            self._add(lambda: _position(value), what)
        elif is_own(value, types.GeneratorType):
            self._add(lambda: (value.gi_running, value.gi_frame and value.gi_frame.f_lasti), what)
        else:
            self._watch_parts(value, what, home, depth)

    def _watch_function(self, function: types.FunctionType, what: str, home: str, depth: int) -> None:
        table = function.__dict__
        self.add_table(table, dict(table), f"an attribute of {what}")
        for inner in (
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
            *vars(function).values(),
        ):
            self.watch(inner, what, home, depth + 1)
        for cell in function.__closure__ or ():
            self._add(lambda cell=cell: _contents(cell), f"a variable of a function around {what}")
            self.watch(_contents(cell), what, home, depth + 1)

    def _watch_parts(self, value: Any, what: str, home: str, depth: int) -> None:
        parts: Iterator[Any] = iter(())
        if is_own(value, _PLAIN):
            kind = dict if is_own(value, dict) else type(value) if type(value) in _PLAIN else list
            if is_own(value, dict) or type(value) in _PLAIN:
                self.add_table(value, kind(value), what)
            else:
                self._add(lambda: kind(value), what)
            parts = itertools.chain(value, value.values()) if is_own(value, dict) else iter(list(value))
        elif is_own(value, (tuple, frozenset)):
            parts = iter(value)
        table = _attribute(value, "__dict__")
        if isinstance(table, dict) and not is_own(value, types.ModuleType) and _is_watched_type(type(value)):
            self.add_table(table, dict(table), f"an attribute of {what}")
            parts = itertools.chain(parts, list(table.values()))
        for slot in _slots(type(value)):
            self._add(lambda slot=slot: _attribute(value, slot), f"{slot} of {what}")
            parts = itertools.chain(parts, [_attribute(value, slot)])
        for part in list(parts):
            self.watch(part, what, home, depth + 1)


def _position(iterator: Any) -> str:
    """Where an iterator stands, as text; those of itertools warn from Python 3.12 on that they lose `__reduce__`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return repr(iterator.__reduce__())


def is_own(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """`isinstance` by what it is: a proxy says another class than its own, and may load a library to do so."""
    return issubclass(type(value), kinds)


def _attribute(value: Any, name: str) -> Any:
    """What the object itself has, None if nothing; nothing that its class would look up or make is asked for."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _without_dunders(names: dict) -> dict:
    return {name: value for name, value in names.items() if not name.startswith("__")}


def is_watched(module: Any) -> bool:
    if not isinstance(module, str) or module == "__main__":
        return False  # what is defined in a notebook is copied for each rank, see worker_copies.py
    top = module.partition(".")[0]
    return not top.startswith("hw_") and top not in _QUIET and top not in sys.stdlib_module_names


def _is_watched_type(kind: type) -> bool:
    """Objects of the standard library keep caches of their own (loggers, locks, paths), but for a few plain ones."""
    if issubclass(kind, (types.SimpleNamespace, local, torch.nn.Module)):
        return True
    return is_watched(kind.__module__) or kind.__module__ == "argparse"


def _slots(kind: type) -> list[str]:
    if not is_watched(kind.__module__):
        return []
    names: list[str] = []
    for base in kind.__mro__:
        own = base.__dict__.get("__slots__", ())
        names += [own] if isinstance(own, str) else list(own)
    return [n for n in names if n not in ("__dict__", "__weakref__") and not n.startswith("__")]
