"""The dispatch mode of tensors without values: it asks torch's own shape rules once for each new case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._ops import HigherOrderOperator
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from hw_utils.core.calls.dispatch import taken_apart
from hw_utils.virtual.ranks.shapes.cases import SPARSE, Shape, described, made, on_meta, shapes_of, tensors_of
from hw_utils.virtual.ranks.shapes.known import NoValue, are_known, forget, is_index, is_known, is_small, learn
from hw_utils.virtual.ranks.shapes.rules import (
    ALSO_WRITTEN,
    LIKE,
    OVERWRITES,
    Rule,
    corrected,
    returned_by,
    rule_of,
    written_by,
)  # fmt: skip

_push_mode, _pop_mode = _python_dispatch._push_mode, _python_dispatch._pop_mode  # a simulation watches torch's own
_by_nobody = torch._C.DisableTorchFunction
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CPU, _STRIDED = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), torch.strided


class ShapesOnly(TorchDispatchMode):
    """Operations of the running thread compute nothing, unless all that they read is known and small."""

    is_of_the_run = True  # and no program's
    supports_higher_order_operators = True

    def __init__(self, tables: ShapesOnly | None = None) -> None:
        """tables: of another one, which this one takes and adds to."""
        super().__init__()
        self.looks: list[Callable] = []  # called as those of `hw_utils.core.calls.dispatch.Mode`
        self.case: Case | None = None  # what is known of the call that the looks see, if it is one of a kind
        # An operation by its id, which is quick -> what is done with a call of it, and whether that names a case.
        self.ways: dict[int, tuple[Callable, bool]] = {} if tables is None else tables.ways
        self.whole = tables or self
        self.inside = self if tables else ShapesOnly(self)  # sees what operations are made of, and nobody looks

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the method below in one that costs 3 us a call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if isinstance(func, HigherOrderOperator):
            return taken_apart(self, func, args, kwargs or {})
        with _by_nobody():  # each attribute of a tensor would be asked of a program's function modes
            kwargs = kwargs or {}
            is_plain = True
            for kind in types:
                if kind not in _PLAIN:  # its class decides what the operation is: those on its parts come here
                    if hasattr(kind, "__tensor_flatten__"):
                        return NotImplemented
                    is_plain = False
            way, names_case = (self.ways.get(id(func)) or self._learned(func)) if is_plain else (_as_it_is, False)
            out = way(func, args, kwargs)
            if not names_case:  # other ranks may have run meanwhile, and named theirs
                self.case = None
            for look in self.looks:
                look(func, args, kwargs, out)
            return out

    def begin(self) -> None:
        """From now on this thread's operations have shapes only."""
        _push_mode(self)

    def end(self) -> None:
        """No longer."""
        _pop_mode()

    def _learned(self, func) -> tuple[Callable, bool]:
        way = self._way_of(func)
        found = self.ways[id(func)] = way, isinstance(way, (_Computing, _Writing))
        return found

    def _way_of(self, func) -> Callable:
        rule = rule_of(func)
        if rule is Rule.WRITTEN:
            return _Writing(self.whole, func)
        if rule is Rule.COMPUTED:
            return _Computing(self.whole, func)
        others = {
            Rule.AS_IT_IS: _as_it_is, Rule.CHECKED: _checked, Rule.UNINITIALISED: _uninitialised,
            Rule.READ: _Reading(self.whole, func), Rule.COMMUNICATED: _communicated,
            Rule.TAKEN_APART: self._taken_apart,
        }  # fmt: skip
        return others[rule]

    def _taken_apart(self, func, args: tuple, kwargs: dict):
        """An operation that is made of others: those come here."""
        self.inside.begin()
        try:
            return func.redispatch(_CPU, *args, **kwargs)
        finally:
            self.inside.end()


class Case:
    """A call as all others on the same shapes: what it gives, and what a device says that it costs."""

    __slots__ = ("cost", "found")

    def __init__(self, found: Any) -> None:
        self.found, self.cost = found, None


class _Cases:
    """The cases of one operation, by its arguments' shapes."""

    def __init__(self, mode: ShapesOnly) -> None:
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


class _Computing(_Cases):
    """Calls of one operation that makes new tensors."""

    def __init__(self, mode: ShapesOnly, func) -> None:
        super().__init__(mode)
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.reads, self.also_written = func._opname not in LIKE, ALSO_WRITTEN.get(func._opname, ())

    def __call__(self, func, args: tuple, kwargs: dict):
        self.mode.case = None
        key, tensors = [], []
        if not described(args, key, tensors) or (kwargs and not described(kwargs.items(), key, tensors)):
            return _elsewhere(func, args, kwargs)
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


class _Writing(_Cases):
    """Calls of one operation that writes to its arguments, and gives them, or new tensors, or nothing."""

    def __init__(self, mode: ShapesOnly, func) -> None:
        super().__init__(mode)
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.written, self.returned = written_by(func), returned_by(func)
        self.is_out = torch.Tag.out in func.tags
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
            return _elsewhere(func, args, kwargs)
        forget(args[0])
        return args[0]


class _Reading:
    """Calls of one operation whose result's shape, or Python value, depends on elements."""

    def __init__(self, mode: ShapesOnly, func) -> None:
        self.is_index = func._opname == "index"
        self.with_shapes = _Computing(mode, func)
        self.text = _TEXTS.get(func._opname, f"{func._opname}()")

    def __call__(self, func, args: tuple, kwargs: dict):
        if self.is_index and not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            return self.with_shapes(func, args, kwargs)
        for tensor in tensors_of((args, kwargs)):
            if tensor.is_cpu and not is_known(tensor):
                raise NoValue(self.text, tensor)
        return func(*args, **kwargs)


_TEXTS = {
    "_local_scalar_dense": "item(), or if, float(), int() or a format of a tensor,",
    "index": "an index by a mask",
    "equal": "torch.equal()",
}


def _elsewhere(func, args: tuple, kwargs: dict):
    """Some tensor is on the device "meta", or sparse: torch does what it always does with these."""
    tensors = list(tensors_of((args, kwargs)))
    here = [t for t in tensors if t.is_cpu and t.layout is _STRIDED]
    if not are_known(here) and any(t.layout is not _STRIDED for t in tensors):
        raise NotImplementedError(SPARSE)
    return func(*args, **kwargs)


def _as_it_is(func, args: tuple, kwargs: dict):
    return func(*args, **kwargs)


def _communicated(func, args: tuple, kwargs: dict):
    """Groups of the cluster ask what has values; one in C++, which only shows a collective to modes, would copy."""
    arguments = {**dict(zip((a.name for a in func._schema.arguments), args)), **kwargs}
    boxed = arguments.get("process_group")
    is_ours = boxed is None or type(dist.ProcessGroup.unbox(boxed)) is not dist.ProcessGroup
    if is_ours or are_known(tensors_of((args, kwargs))):
        return func(*args, **kwargs)
    work = torch.ops.c10d.barrier(torch.zeros(1), boxed, [], True, -1)
    return (args[0], work) if len(func._schema.returns) == 2 else work


def _checked(func, args: tuple, kwargs: dict):
    if are_known(tensors_of((args, kwargs))):
        func(*args, **kwargs)


def _uninitialised(func, args: tuple, kwargs: dict):
    try:
        new = func(*args, **kwargs)
    except RuntimeError:
        return made(shapes_of(func(*on_meta(args), **on_meta(kwargs))))
    if new.is_cpu and new.layout is _STRIDED and not (is_index(new.dtype) and is_small(new.nbytes, new.dtype)):
        forget(new)
    return new


def _no_rule(func, error: Exception) -> NotImplementedError:
    return NotImplementedError(
        f'torch has no rule for the shapes that {func} gives, so values="shapes" cannot run it ({error}). '
        'Next step: write it with other operations, or take values="real"'
    )
