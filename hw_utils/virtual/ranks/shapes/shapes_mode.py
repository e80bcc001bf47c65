"""The dispatch mode of tensors without values: which way a call of an operation goes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch._ops import HigherOrderOperator
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from hw_utils.core.calls.dispatch import taken_apart
from hw_utils.virtual.ranks.shapes.data_dependent import Reading
from hw_utils.virtual.ranks.shapes.known_values import are_known, forget, is_index, is_small
from hw_utils.virtual.ranks.shapes.meta_cache_keys import made, on_meta, shapes_of, tensors_of
from hw_utils.virtual.ranks.shapes.meta_results import Case, Computing, Writing
from hw_utils.virtual.ranks.shapes.views_and_writes import Rule, rule_of

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
        found = self.ways[id(func)] = way, isinstance(way, (Computing, Writing))
        return found

    def _way_of(self, func) -> Callable:
        rule = rule_of(func)
        if rule is Rule.WRITTEN:
            return Writing(self.whole, func)
        if rule is Rule.COMPUTED:
            return Computing(self.whole, func)
        others = {
            Rule.AS_IT_IS: _as_it_is, Rule.CHECKED: _checked, Rule.UNINITIALISED: _uninitialised,
            Rule.READ: Reading(self.whole, func), Rule.COMMUNICATED: _communicated,
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
