"""Every tensor that an object keeps alive, also in its lists and dictionaries and in the functions that it keeps.

And what an answer keeps beside its objects: under a global name, on a class, on a parameter that it was given.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinMethodType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

NUMBERS = ", its numbers"  # ends the path of floats that are no tensor
_MOST_THINGS = 10_000
_FEW_BYTES = 16  # letters in a name, flags
_FEW_NUMBERS = 2_000  # to look through them costs as much as to ask for it
_MOST_STARTS = 10  # of a row of numbers: as many places as are tried
_BY_ANY_NAME = {"globals", "vars"}  # what reaches global names that do not stand in the code
_A_MODULES_OWN = ("_parameters", "_buffers", "_modules")
_OURS = "hw_"  # this course's packages: a communication layer, for example: what it keeps is no part of a layer


def kept_tensors(thing: Any, *, with_numbers: bool = False) -> dict[str, torch.Tensor]:
    """Path -> tensor, of all that hangs on the object's attributes: `weight`, `parts[1]`, `cut, in its weight`.

    Looked into are lists, tuples, sets, dictionaries, objects of other classes than this package's, and what functions
    close over. What hangs on the class is nobody's own, and is left out. with_numbers: also, each time as one tensor,
    the Python floats of a list, a dictionary or an object, and raw bytes.

    >>> sorted(kept_tensors(torch.nn.Linear(2, 1)))
    ['bias', 'weight']
    """
    own = list(attributes(thing))
    if with_numbers:
        own.append(("", [value for _, value in own if type(value) is float]))
    return _found({id(thing)}, deque(own), _parts, with_numbers)


def kept_elsewhere(
    answers: list, models: list[torch.nn.Module], *, with_numbers: bool = False
) -> dict[str, torch.Tensor]:
    """Path -> tensor, of all that a notebook's functions and classes keep beside their objects.

    Looked into are the global names that they mention, their classes' attributes, and what they hang on the models that
    they are given, on their parts and on their parameters.
    """
    hung = [(f"{name}.{key}", value) for model in models for name, p in model.named_parameters()
            for key, value in vars(p).items()]  # fmt: skip
    hung += [(f"{name or 'model'}.{key}", value) for model in models for name, part in model.named_modules()
             for key, value in vars(part).items() if key not in _A_MODULES_OWN]  # fmt: skip
    waiting = deque([*((getattr(answer, "__name__", "answer"), answer) for answer in answers), *hung])
    return _found(set(), waiting, _parts_of_notebook, with_numbers)


def kept_by_frames(frames: Iterable[FrameType]) -> list[torch.Tensor]:
    """Every tensor that running functions hold: in their variables, in lists and closures of these, on functions and
    classes, and under the global names that they mention (under any, if they ask for `globals()`)."""
    waiting: deque = deque()
    for frame in frames:
        variables = frame.f_locals
        waiting.extend(variables.items())
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(variables) is dict:
            variables.clear()  # before Python 3.13 the frame itself would hold on to these values
        waiting.extend(global_names(frame.f_code, frame.f_globals))
    return list(_found(set(), waiting, _parts_of_notebook, with_numbers=True).values())


class Memories:
    """All the memory that some tensors are views of, as it is now, to look numbers up in."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        views = [memory for tensor in tensors if (memory := _memory_of_floats(tensor)) is not None]
        memories = {(memory.data_ptr(), memory.dtype): memory for memory in views}.values()
        small: dict[torch.dtype, list[torch.Tensor]] = {}  # looked through at once, one kind at a time
        self._large = []
        for memory in memories:
            (self._large if len(memory) > _FEW_NUMBERS else small.setdefault(memory.dtype, [])).append(memory)
        self._small = [(torch.cat(together), together) for together in small.values()]

    def have(self, numbers: torch.Tensor) -> bool:
        """Whether one of them has all of these, in any shape; of a constant nobody can say."""
        flat = numbers.detach().flatten()
        if not len(flat):
            return False
        few = flat[[0, len(flat) // 2, -1]]  # tell most memory apart, the first one most of that
        memories = self._large + [m for joined, together in self._small if n_found(few, joined) == 3 for m in together]
        holders = [memory for memory in memories if all(n_found(number, memory) for number in few)]
        if not holders or not _are_three_kinds(flat):
            return False
        return any(_lies_in(flat, memory) or n_found(flat, memory) == len(flat) for memory in holders)


def _are_three_kinds(numbers: torch.Tensor) -> bool:
    """Whether they are no constant, and not two numbers only."""
    others = numbers[numbers != numbers[0]]
    return bool(len(others)) and bool((others != others[0]).any())


def _lies_in(numbers: torch.Tensor, memory: torch.Tensor) -> bool:
    """Whether all of them lie there side by side, as a copy does: much quicker to see than that each lies somewhere."""
    numbers = numbers.to(memory.dtype)
    starts = (memory[: len(memory) - len(numbers) + 1] == numbers[0]).nonzero().flatten().tolist()
    return any(torch.equal(memory[start : start + len(numbers)], numbers) for start in starts[:_MOST_STARTS])


def beside_models(tensors: dict[str, torch.Tensor], models: list[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """The same without memory in which the models' own weights and gradients lie; of such memory the rest, if any."""
    own: dict[int, dict[int, int]] = {}  # memory -> place in it -> bytes
    for tensor in (t for model in models for p in model.parameters() for t in (p.detach(), p.grad) if t is not None):
        own.setdefault(tensor.untyped_storage().data_ptr(), {})[tensor.data_ptr()] = tensor.nbytes
    found = {}
    for path, tensor in tensors.items():
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            found[path] = tensor
        elif (rest := memory.nbytes() - sum(own[memory.data_ptr()].values())) > 0:
            found[path] = torch.zeros(-(-rest // tensor.element_size()), dtype=tensor.dtype)
            own[memory.data_ptr()] = {0: memory.nbytes()}  # said once
    return found


def has_numbers(tensor: torch.Tensor) -> bool:
    """Whether it may hold what was computed: floats, or whole numbers too large for places and counts.

    Floats' bits are such numbers (`.view(torch.int32)`), and so is what is packed into bytes. A random state is known
    by its size.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        return True
    if tensor.dtype == torch.bool or tensor.device.type != "cpu" or not tensor.numel():
        return False
    if tensor.element_size() < 4:
        return tensor.numel() > _FEW_BYTES and tensor.shape != torch.get_rng_state().shape
    signed = tensor.detach().contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int64)
    return bool((signed.abs() > 2 ** (5 * tensor.element_size() + 4)).any())


def n_found(numbers: torch.Tensor, value: torch.Tensor) -> int:
    """How many of the numbers lie in the memory that a tensor is a view of."""
    memory = _memory_of_floats(value)
    if memory is None:
        return 0
    numbers = numbers.to(value.dtype).flatten()
    if len(numbers) < 4:
        return sum(bool((memory == number).any()) for number in numbers)
    return int(torch.isin(numbers.double(), memory.double()).sum())


def _memory_of_floats(value: torch.Tensor) -> torch.Tensor | None:
    """All of it as one row, if floats lie in it that torch computes with: of two to a byte (float4) it has none."""
    is_read = value.dtype.is_floating_point and "float4" not in str(value.dtype)
    if not is_read or value.layout != torch.strided or value.device.type != "cpu":
        return None
    return torch.empty(0, dtype=value.dtype).set_(value.detach().untyped_storage())


def _found(
    seen: set[int], waiting: deque, parts: Callable[[Any], Iterator[tuple[str, Any]]], with_numbers: bool
) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    while waiting and len(seen) < _MOST_THINGS:
        path, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        while path in found or f"{path}{NUMBERS}" in found:  # keys of a dictionary are shown by their beginning
            path += "'"
        if isinstance(value, np.ndarray) and value.dtype.kind in "fciu":
            found[path] = _of_array(value)
        elif isinstance(value, torch.Tensor):
            while is_functorch_wrapped_tensor(value):  # one a transform of torch.func, around that with memory
                value = get_unwrapped(value)
            found[path] = value
        else:
            inside = list(parts(value))
            numbers = _numbers(value, inside) if with_numbers else []
            if numbers:
                found[f"{path}{NUMBERS}"] = torch.tensor(numbers, dtype=torch.float64)
            waiting.extend((f"{path}{step}", part) for step, part in inside if type(part) is not float)
    return found


def _of_array(array: np.ndarray) -> torch.Tensor:
    """The array's memory; of a dtype that torch has not, as bytes."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return torch.frombuffer(bytearray(array.tobytes()) or bytearray(1), dtype=torch.uint8)


def _numbers(value: Any, inside: list[tuple[str, Any]]) -> list[float]:
    """The floats in it, and raw bytes as if they were such."""
    if isinstance(value, bytes | bytearray | array):
        return [math.nan] * -(-memoryview(value).nbytes // 8)
    return [part for _, part in inside if type(part) is float]


def _parts_of_notebook(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, and what a function or a class that is written in the notebook leads to."""
    if isinstance(value, type) and is_notebooks(value):
        yield from ((f".{name}", part) for kind in value.__mro__ for name, part in vars(kind).items())
    elif isinstance(value, staticmethod | classmethod):
        yield "", value.__func__
    elif isinstance(value, property):
        yield from (("", part) for part in (value.fget, value.fset))
    else:
        yield from _parts(value)
        yield "", type(value)
        if isinstance(value, FunctionType) and is_notebooks(value):
            mentioned = global_names(value.__code__, value.__globals__)
            yield from ((f", in the global {name}", part) for name, part in mentioned)
            yield from ((f".{name}", part) for name, part in vars(value).items())


def is_notebooks(value: type | FunctionType) -> bool:
    """Whether it is written in a notebook."""
    return value.__module__ == "__main__" or value.__module__ not in sys.modules


def global_names(code: CodeType, names: dict[str, Any]) -> list[tuple[str, Any]]:
    """(name, value) of what code can reach among a module's names."""
    mentioned = _mentioned(code)
    return [(name, names[name]) for name in sorted(names if mentioned & _BY_ANY_NAME else mentioned & names.keys())]


def _mentioned(code: CodeType) -> set[str]:
    inner = (_mentioned(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of what hangs on an object, in slots, too; of a module its parameters and parts."""
    own = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                own[name] = getattr(thing, name)
    if isinstance(thing, torch.nn.Module):
        for inner in ("_parameters", "_buffers", "_modules"):
            own |= own.pop(inner, {})
    yield from own.items()


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """(what to add to its path, part)."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]"[:40], part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"[{k}]", part) for k, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from (("", part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, MethodType):
        yield from (("", part) for part in (value.__self__, value.__func__))
    elif isinstance(value, FunctionType):
        yield from _of_a_function(value)
    elif not isinstance(value, type | ModuleType | BuiltinMethodType) and not is_ours(value):
        yield from ((f".{name}", part) for name, part in attributes(value))


def is_ours(value: Any) -> bool:
    """Whether its class is one of this course's packages: found there, for a class may say anything of itself."""
    kind = type(value)
    if not str(kind.__module__).startswith(_OURS):
        return False
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.partition(".<locals>")[0].split("."):
        found = getattr(found, name, None)
    return found is kind or ("<locals>" in kind.__qualname__ and found is not None)


def _of_a_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f", in its {name}", cell.cell_contents
        except ValueError:
            continue  # not filled yet
    for part in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield ", in a default", part
