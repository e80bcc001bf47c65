"""Dispatch modes of torch, as CommDebugMode: they see a collective as the operation that a group in C++ would call."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch.utils import _python_dispatch

n_modes = torch._C._len_torch_dispatch_stack  # of the running thread


def show(group, method: str, arguments: tuple, named: dict) -> None:
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
def looked_for(begin):
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
