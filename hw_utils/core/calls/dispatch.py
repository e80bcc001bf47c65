"""Every operation of a thread's tensors, shown to those who want to see it: one dispatch mode for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._ops import HigherOrderOperator
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

PLAIN = (torch.Tensor, torch.nn.Parameter)
_push_mode, _pop_mode = _python_dispatch._push_mode, _python_dispatch._pop_mode  # a simulation watches torch's own


def skipped_by_compile(function: Callable) -> Callable:
    """torch.compile leaves it as it is, and what it calls; `torch.compiler.disable` would cost 3 us a call."""
    if hasattr(eval_frame, "set_code_exec_strategy"):  # torch 2.7
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function


class Mode(TorchDispatchMode):
    """Calls each of `looks` with (operation, arguments, named arguments, what it returned), the first one first."""

    is_of_the_run = True  # and no program's

    def __init__(self, *looks: Callable[[Any, tuple, dict, Any], None]) -> None:
        super().__init__()
        self.looks = list(looks)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the method below in `torch.compiler.disable`

    supports_higher_order_operators = True

    @skipped_by_compile
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if isinstance(func, HigherOrderOperator):
            return taken_apart(self, func, args, kwargs or {})
        for kind in types:
            if kind not in PLAIN and hasattr(kind, "__tensor_flatten__"):
                return NotImplemented  # its class decides what the operation is: those on its parts come here
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        for look in self.looks:
            look(func, args, kwargs, out)
        return out

    def begin(self) -> None:
        """From now on it sees this thread's operations."""
        _push_mode(self)

    def end(self) -> None:
        """No longer."""
        _pop_mode()


def taken_apart(mode, func: HigherOrderOperator, args: tuple, kwargs: dict) -> Any:
    """What an operation that is given functions returns, as `flex_attention`: `mode` sees what it is made of."""
    mode.begin()
    try:
        return func.dispatch(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    finally:
        mode.end()


def beneath_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with memory beneath those of torch.func, which wraps one for each transform: vjp, grad, vmap, ..."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor
