"""What an object and what is written beside it hold, as texts that can be compared: numbers, texts, bytes.

Who must not keep something holds the same whatever it was.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copyreg import dispatch_table
from decimal import Decimal
from fractions import Fraction
from gc import get_referents
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, GeneratorType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch

from hw_utils.material.kept.tensors import attributes, global_names, is_notebooks, is_ours

_MOST_THINGS = 20_000
_SHOWN = 60  # characters of a text; longer ones are told apart by their hash
_HOOKS_OF_A_MODULE = [name for name in vars(torch.nn.Module()) if name.endswith("_hooks")]
_HOOKS_OF_A_TENSOR = ["_backward_hooks", "_post_accumulate_grad_hooks"]
_PLAIN = (int, float, complex, Fraction, Decimal, np.generic)
_RAW = (bytes, bytearray, memoryview, array)
_OF_PYTHONS_OWN = frozenset({"builtins", "collections", "functools", "itertools", "operator", "types", "_io"})


def kept_values(thing: Any, answers: Sequence[Any], models: Sequence[torch.nn.Module]) -> tuple[list[str], list[str]]:
    """Of all that hangs on the object and its models, and of what a notebook's classes and global names hold beside it,
    and the process's environment.

    Looked into are containers and their keys, objects, closures and iterators.
    Left out are floats in tensors and arrays, which others look for and which nobody may have filled yet, and objects
    of this course's packages.
    """
    hung = [vars(part) for model in models for part in (*model.modules(), *model.parameters())]
    hung = [{k: v for k, v in names.items() if k not in ("_parameters", "_buffers", "_modules")} for names in hung]
    return list(_values([thing, *hung], beside=False)), list(_values([*answers, dict(os.environ)], beside=True))


def hung_on(models: Iterable[torch.nn.Module]) -> list[str]:
    """The names of all that hangs on models, their parts and their parameters: attributes, and each hook.

    >>> linear = torch.nn.Linear(1, 1)
    >>> before = hung_on([linear])
    >>> _ = linear.register_forward_hook(print)
    >>> linear.mine = 1
    >>> sorted((Counter(hung_on([linear])) - Counter(before)).elements())
    ['`mine`', 'a hook in `_forward_hooks`']
    """
    names: list[str] = []
    for thing in (thing for model in models for thing in (*model.modules(), *model.parameters())):
        kinds = _HOOKS_OF_A_TENSOR if isinstance(thing, torch.Tensor) else _HOOKS_OF_A_MODULE
        hooks = {name: getattr(thing, name) for name in kinds}
        names += [f"`{name}`" for name in vars(thing) if name not in hooks]
        names += [f"a hook in `{name}`" for name, each in hooks.items() for _ in each or ()]
    return names


def depends(looks: Sequence[tuple[list[str], list[str]]]) -> str:
    """What is held after something else, and not after the same again, as it is shown; "" if there is no such thing.

    looks: `kept_values` of five objects that were made one after the other and did the same; 0 to 2 with the same
    numbers of what may not be kept, 3 and 4 with the same others. What differs each time, as a count does or a clock,
    is no sign.
    """
    beside = [Counter(look[1]) for look in looks]
    new = [{*look[0], *(now - before)} for look, now, before in zip(looks[1:], beside[1:], beside)]
    first, second = (new[0] & new[1]) - new[2] - new[3], (new[2] & new[3]) - new[0] - new[1]
    return min(second, key=len)[:_SHOWN] if first and second else _came_later([{*own, *other} for own, other in looks])


def _came_later(held: Sequence[set[str]]) -> str:
    """What came with the other numbers and stayed, if the same numbers brought less: a set takes each value once."""
    stayed = [held[k].difference(*held[:k]) & held[k + 1] for k in (1, 2, 3)]
    return min(stayed[2], key=len)[:_SHOWN] if len(stayed[2]) > max(map(len, stayed[:2])) else ""


def _values(roots: Iterable[Any], *, beside: bool) -> Iterator[str]:
    """beside: what classes and global names lead to counts, too."""
    waiting, seen, alive = deque(roots), set(), []
    while waiting and len(alive) < _MOST_THINGS:
        value = waiting.popleft()
        if id(value) in seen or value is None or isinstance(value, bool):
            continue
        alive.append(value)  # so that no other one gets its id
        shown = _shown(value)
        if shown:
            yield shown
        else:
            seen.add(id(value))
        if shown is None or isinstance(value, torch.Tensor):
            waiting.extend(_inside(value, beside))


def _shown(value: Any) -> str | None:
    """The value as a text; "" for what is left out; None for what may have others inside."""
    if isinstance(value, str):
        return _short(f"text {value}")
    if isinstance(value, _PLAIN):
        return _short(f"number {value!r}")
    if isinstance(value, _RAW):
        return _short(f"bytes {bytes(value).hex()}")
    if isinstance(value, torch.Tensor):
        return "" if value.is_floating_point() or value.device.type != "cpu" else _short(f"tensor {value.tolist()}")
    if isinstance(value, np.ndarray) and value.dtype.kind in "fcO":
        return "" if value.dtype.kind in "fc" else None
    if isinstance(value, np.ndarray):
        return _short(f"array {value.tolist()}")
    with suppress(Exception):
        if isinstance(value, io.BytesIO | io.StringIO):
            return _short(f"text {value.getvalue()!r}")
        if isinstance(value, random.Random):
            return _short(f"state {value.getstate()}")
        if isinstance(value, torch.Generator):
            return f"state {_hash(value.get_state().numpy().tobytes())}"
        if type(value).__module__ == "_hashlib":
            return f"hash {value.hexdigest()}"
    return None


def _short(text: str) -> str:
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]} ... {_hash(text.encode('utf-8', 'replace'))}"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


def _inside(value: Any, beside: bool) -> Iterator[Any]:
    if isinstance(value, dict | MappingProxyType):
        yield from (part for pair in value.items() for part in pair)
    elif isinstance(value, torch.Tensor):
        yield vars(value)
    elif isinstance(value, np.ndarray):
        yield value.tolist()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from value
    elif isinstance(value, type):
        if beside and is_notebooks(value):
            yield from (vars(kind) for kind in value.__mro__ if is_notebooks(kind))
    elif isinstance(value, CodeType):
        yield from value.co_consts
    elif isinstance(value, FunctionType):
        if is_notebooks(value):
            yield from (value.__code__, value.__defaults__, value.__kwdefaults__, vars(value), value.__doc__)
            yield from (value.__name__, value.__qualname__, value.__annotations__)
            yield from (cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
            yield from (part for _, part in global_names(value.__code__, value.__globals__)) if beside else ()
    elif isinstance(value, FrameType | GeneratorType):
        frame = value.gi_frame if isinstance(value, GeneratorType) else value
        yield from list(frame.f_locals.values()) if frame is not None else ()
    elif not isinstance(value, ModuleType | BuiltinFunctionType) and not is_ours(value):
        yield from (part for pair in attributes(value) for part in pair)
        if beside:
            yield type(value)
        if type(value).__module__ in _OF_PYTHONS_OWN:
            yield from (part for part in get_referents(value) if not isinstance(part, type | ModuleType))
        if not getattr(value, "__dict__", None) and not is_notebooks(type(value)):
            yield from _copied_from(value)


def _copied_from(value: Any) -> list[Any]:
    """What a copy would be made from of a thing that is written in C: a range, a duration, a pattern."""
    with suppress(Exception):
        return list(dispatch_table.get(type(value), lambda it: it.__reduce_ex__(4))(value)[1:])
    return []


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
