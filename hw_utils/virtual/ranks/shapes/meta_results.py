"""Calls that give shapes only: torch's own rule is asked once for each new case of an operation."""

from __future__ import annotations

from typing import Any

import torch

from hw_utils.virtual.ranks.shapes.known_values import are_known, forget, is_index, is_known, is_small, learn
from hw_utils.virtual.ranks.shapes.meta_cache_keys import SPARSE, Shape, described, made, on_meta, shapes_of, tensors_of
from hw_utils.virtual.ranks.shapes.views_and_writes import (
    ALSO_WRITTEN,
    LIKE,
    OVERWRITES,
    corrected,
    returned_by,
    written_by,
)

_by_nobody = torch._C.DisableTorchFunction
_STRIDED = torch.strided


class Case:
    """A call as all others on the same shapes: what it gives, and what a device says that it costs."""

    __slots__ = ("cost", "found")

    def __init__(self, found: Any) -> None:
        self.found, self.cost = found, None


class _Cases:
    """The cases of one operation, by its arguments' shapes. `mode` (shapes_mode.py) is told which one a call was."""

    def __init__(self, mode) -> None:
        self.mode = mode
        self.cases: dict[tuple, Case] = {}

    def result_of(self, func, key: list, args: tuple, kwargs: dict) -> Any:
        """The shapes of what a call gives, one for each tensor.

        Raises what torch raises for arguments that do not fit.
        """
        key = tuple(key)
        case = self.cases.get(key)
        if case is None:
            found = shapes_of(corrected(func, args, func(*on_meta(args), **on_meta(kwargs))))
            case = self.cases[key] = Case(found)
        self.mode.case = case
        return case.found


class Computing(_Cases):
    """Calls of one operation that makes new tensors."""

    def __init__(self, mode, func) -> None:
        super().__init__(mode)
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.reads, self.also_written = func._opname not in LIKE, ALSO_WRITTEN.get(func._opname, ())

    def __call__(self, func, args: tuple, kwargs: dict):
        self.mode.case = None
        key, tensors = [], []
        if not described(args, key, tensors) or (kwargs and not described(kwargs.items(), key, tensors)):
            return elsewhere(func, args, kwargs)
        if not tensors:
            key.append(repr((args, kwargs)))  # its numbers decide, as those of arange
        may_keep = not self.reads or are_known(tensors)
        try:
            found = self.result_of(func, key, args, kwargs)
        except NotImplementedError as error:
            if may_keep:
                return func(*args, **kwargs)
            raise _no_rule(func, error) from None
        if may_keep and self._keeps_values(found):
            return func(*args, **kwargs)
        for place in self.also_written:
            if args[place] is not None:
                forget(args[place])
        return made(found)

    def _keeps_values(self, found: Any) -> bool:
        if type(found) is Shape:
            return is_small(found.n_bytes, found.dtype) and not (self.is_random and not is_index(found.dtype))
        return found is None or all(map(self._keeps_values, found))


class Writing(_Cases):
    """Calls of one operation that writes to its arguments, and gives them, or new tensors, or nothing."""

    def __init__(self, mode, func) -> None:
        super().__init__(mode)
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.written, self.returned = written_by(func), returned_by(func)
        self.is_out = any(argument.is_out for argument in func._schema.arguments)
        self.overwrites = func._opname in OVERWRITES or self.is_out

    def __call__(self, func, args: tuple, kwargs: dict):
        self.mode.case = None
        key, tensors = [], []
        if not described(args, key, tensors) or (kwargs and not described(kwargs.items(), key, tensors)):
            return self._with_meta(func, args, kwargs)
        given = [args[place] if place < len(args) else kwargs.get(name) for place, name in self.written]
        targets = list(tensors_of(given))
        try:
            found = self.result_of(func, key, args, kwargs)
        except NotImplementedError as error:
            if are_known(tensors):
                return func(*args, **kwargs)
            raise _no_rule(func, error) from None
        if self._keeps_values(tensors, targets):
            result = func(*args, **kwargs)
            learn(targets)
            return result
        for target in targets:
            forget(target)
        return self._given(found, dict(zip(self.written, given)))

    def _keeps_values(self, tensors: list, targets: list) -> bool:
        if self.is_random and not all(is_index(target.dtype) for target in targets):
            return False
        if not self.overwrites:
            return are_known(tensors)
        written = set(map(id, targets))
        return are_known(tensor for tensor in tensors if id(tensor) not in written) and all(
            is_known(target) or is_small(target.nbytes, target.dtype) for target in targets
        )

    def _given(self, found: Any, given: dict):
        """What the call returns: what it was given, or what is new."""
        if not self.returned:
            return None
        shapes = (found,) if len(self.returned) == 1 else found
        results = []
        for argument, shape in zip(self.returned, shapes):
            result = made(shape) if argument is None else given[argument]
            if self.is_out and type(shape) is Shape and result.size() != shape.size:
                result.resize_(shape.size)
            results.append(result)
        return results[0] if len(self.returned) == 1 else tuple(results)

    def _with_meta(self, func, args: tuple, kwargs: dict):
        """Some argument is on the device "meta": what is copied from there has no values."""
        here = [t for t in tensors_of((args, kwargs)) if t.device.type != "meta"]
        if func._opname != "copy_" or here != [args[0]]:
            return elsewhere(func, args, kwargs)
        forget(args[0])
        return args[0]


def elsewhere(func, args: tuple, kwargs: dict):
    """Some tensor is on the device "meta", or sparse: torch does what it always does with these."""
    tensors = list(tensors_of((args, kwargs)))
    here = [t for t in tensors if t.is_cpu and t.layout is _STRIDED]
    if not are_known(here) and any(t.layout is not _STRIDED for t in tensors):
        raise NotImplementedError(SPARSE)
    return func(*args, **kwargs)


def _no_rule(func, error: Exception) -> NotImplementedError:
    return NotImplementedError(
        f'torch has no rule for the shapes that {func} gives, so values="shapes" cannot run it ({error}). '
        'Next step: write it with other operations, or take values="real"'
    )
