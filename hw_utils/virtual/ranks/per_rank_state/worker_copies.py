"""The worker and its arguments, one copy a virtual rank, as if every rank were a process of its own."""

from __future__ import annotations

import builtins
import types
from dis import opmap
from itertools import pairwise
from typing import Any

import torch

from hw_utils.core import pickling

_IMMUTABLE = (
    type(None), bool, int, float, complex, str, bytes, types.ModuleType, types.BuiltinFunctionType, torch.dtype,
    torch.device, torch.Size, type(Ellipsis), range,
)  # fmt: skip

_NOT_STEPS = {0, opmap["EXTENDED_ARG"]}  # 0: room for what the interpreter keeps beside an instruction
_STORES = {opmap["STORE_GLOBAL"], opmap["DELETE_GLOBAL"]}
_STORE_DEREF, _STORE_ATTR = opmap["STORE_DEREF"], opmap["STORE_ATTR"]
_LOADS = {opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")}

# What changes a global name, or an attribute of a function, without a statement that says so.
_WRITES_ANYWHERE = {"globals", "vars", "setattr", "__dict__"}


class Copies:
    """Hands out `(worker, args)`; the same one every time if nothing in it can change."""

    def __init__(self, call: bytes) -> None:
        self.call = call
        self.shared: tuple | None = None
        self.is_first = True

    def take(self) -> tuple:
        if self.shared is not None:
            return self.shared
        found = pickling.load(self.call)
        if self.is_first:
            self.is_first = False
            if is_constant(found):
                self.shared = found
        return found


def is_constant(value: Any, depth: int = 0, seen: set[int] | None = None) -> bool:
    """Whether nothing that can be reached from `value` can be changed in place; a function counts what it mentions."""
    seen = set() if seen is None else seen
    if isinstance(value, _IMMUTABLE) or id(value) in seen:
        return True
    if depth > 20:
        return False
    seen.add(id(value))
    if isinstance(value, type):
        return value.__module__ != "__main__"
    if type(value) in (tuple, frozenset):
        return all(is_constant(v, depth + 1, seen) for v in value)
    if isinstance(value, types.FunctionType):
        return _is_constant_function(value, depth + 1, seen)
    dataclass = getattr(type(value), "__dataclass_params__", None)
    if dataclass is not None and dataclass.frozen:
        return all(is_constant(v, depth + 1, seen) for v in vars(value).values())
    return False


def _is_constant_function(function: types.FunctionType, depth: int, seen: set[int]) -> bool:
    module = function.__module__
    if module != "__main__" and _is_importable(function):
        return True  # every rank would import it; a module's own state is one for all ranks
    mentioned = [c.cell_contents for c in function.__closure__ or ()] + list(function.__defaults__ or ())
    mentioned += list((function.__kwdefaults__ or {}).values()) + list(vars(function).values())
    names = _names(function.__code__)
    if names & _WRITES_ANYWHERE:
        return False
    mentioned += [function.__globals__[n] for n in names if n in function.__globals__ and not hasattr(builtins, n)]
    return not _stores(function.__code__) and all(is_constant(v, depth, seen) for v in mentioned)


def _is_importable(function: types.FunctionType) -> bool:
    import sys

    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _stores(code: types.CodeType) -> bool:
    """Whether the code assigns to a global, to a variable of an outer function or to an attribute of either."""
    steps = [step for step in code.co_code[::2] if step not in _NOT_STEPS]
    if not _STORES.isdisjoint(steps) or (code.co_freevars and _STORE_DEREF in steps):
        return True
    if any(step == _STORE_ATTR and before in _LOADS for before, step in pairwise(steps)):
        return True  # a function can be changed in place, too
    return any(_stores(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
