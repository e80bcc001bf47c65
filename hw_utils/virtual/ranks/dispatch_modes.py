"""Dispatch modes of torch, as CommDebugMode: they see a collective as the operation that a group in C++ would call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch.utils import _python_dispatch

from hw_utils.core.calls.public_calls import not_compiled

n_modes = torch._C._len_torch_dispatch_stack  # of the running thread


def _show(group, method: str, arguments: tuple, named: dict) -> None:
    """Calls the same on a group that moves nothing, through torch's dispatcher: that is what modes see."""
    if group.shown is None:
        group.shown = _idle_group(group.rank(), group.size())
    getattr(group.shown, method)(*arguments, **named)


def _idle_group(place: int, size: int) -> dist.ProcessGroup:
    from torch._C._distributed_c10d import FakeProcessGroup

    group = dist.ProcessGroup(place, size)
    backend = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)(place, size)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    return group


_SEEN_BY_NOBODY = nullcontext()


def unseen():
    """What the cluster itself does with tensors meanwhile is none of the modes' business."""
    return _python_dispatch._disable_current_modes() if n_modes() else _SEEN_BY_NOBODY


@contextmanager
def _looked_for(begin):
    """While it lasts, `begin()` is called when a mode of the program begins."""
    push = _python_dispatch._push_mode

    def pushed(mode) -> None:
        if not getattr(mode, "is_of_the_run", False):  # one of the run's own is back after `unseen`
            begin()
        push(mode)

    _python_dispatch._push_mode = pushed
    try:
        yield
    finally:
        _python_dispatch._push_mode = push


@contextmanager
def shown(group_class: type, methods: Iterable[str]) -> Iterator[None]:
    """While it lasts, modes see these calls of a class of groups; without a mode nothing is different."""
    before = {name: getattr(group_class, name) for name in methods}

    def begin() -> None:
        for name, method in before.items():
            setattr(group_class, name, _shown(name, method))

    try:
        with _looked_for(begin):
            yield
    finally:
        for name, method in before.items():
            setattr(group_class, name, method)


def _shown(name: str, method: Callable) -> Callable:
    def call(self, *arguments, **named):
        if not n_modes():
            return method(self, *arguments, **named)
        if self.engine.carrier.is_shared:
            self.engine.ending.need("threads", "a mode of torch")
        _show(self, name, arguments, named)
        with unseen():
            return method(self, *arguments, **named)

    return not_compiled(call)
