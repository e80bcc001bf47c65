"""Who holds a storage: modules, `.grad`, optimizers, backward passes, collectives. Each is asked where torch says it.

Nothing here changes what a program computes: hooks for all modules and optimizers that only look, and functions of
torch's that are called as before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from time import thread_time
from typing import Any

import torch
from torch.autograd.function import FunctionCtx
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from hw_utils.core.calls.dispatch import Mode
from hw_utils.core.calls.patched import patched
from hw_utils.core.memory import storage_tracker as watches
from hw_utils.core.memory.owners import BUFFERS, GATHERED, GRADIENTS, PARAMETERS
from hw_utils.core.memory.storage_tracker import Watch

_node = torch._C._current_autograd_node
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_DETACH = torch.ops.aten.detach.default


@contextmanager
def watched(watch: Watch, engine: Any = None, mode: Any = None) -> Iterator[tuple[Watch, Any]]:
    """While it lasts, `watch` keeps the books of what this thread does; the mode is for other threads of ranks.

    Whoever else wants to see each operation is put into the mode's `looks`. mode: one with `looks` that sees this
    thread's operations anyway.

    engine: whose groups torch's dispatcher does not see; its `collective(group, post, outer)` is asked instead.
    """
    # The first optimizer imports it, and what that import catches holds the frames of its rank, with all they hold.
    importlib.import_module("torch._dynamo")
    is_own, look = mode is None, _look(watch)
    mode = Mode() if is_own else mode
    mode.looks.append(look)
    with ExitStack() as stack:
        stack.callback(watches._current.remove, watch)
        watches._current.append(watch)
        for hook in _hooks(watch):
            stack.callback(hook.remove)
        for where, name, make in _replaced(watch, engine):
            stack.enter_context(patched(where, name, make(getattr(where, name))))
        stack.callback(mode.looks.remove, look)
        if is_own:
            mode.begin()
            stack.callback(mode.end)
        yield watch, mode


def _look(watch: Watch) -> Callable[[Any, tuple, dict, Any], None]:
    """What the books see of an operation."""
    forgive = watch.forgive

    def look(func, args: tuple, kwargs: dict, out: Any) -> None:
        start_s = thread_time() if forgive else 0.0
        watch.saw(func, args, kwargs, out)
        _named_operation(watch, func, args, kwargs, out)
        if forgive:
            forgive(thread_time() - start_s)

    return look


def _hooks(watch: Watch) -> list[Any]:
    def parameter_of(module, name, parameter) -> None:
        if parameter is not None:
            watch.note_parameter(parameter)

    def buffer_of(module, name, buffer) -> None:
        if buffer is not None:
            watch.claim(buffer, BUFFERS)

    def before_forward(module, inputs) -> None:
        for parameter in module._parameters.values():  # also those that were set past `register_parameter`
            if parameter is not None:
                watch.note_parameter(parameter)
        if module._buffers:
            watch.claim(module._buffers, BUFFERS)

    def before_step(optimizer, args, kwargs) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                watch.note_parameter(parameter)
        watch.look_at_gradients()
        watch.step_begins(optimizer)

    def after_step(optimizer, args, kwargs) -> None:
        watch.step_ends(optimizer)

    return [
        modules.register_module_parameter_registration_hook(parameter_of),
        modules.register_module_buffer_registration_hook(buffer_of),
        modules.register_module_forward_pre_hook(before_forward),
        optimizers.register_optimizer_step_pre_hook(before_step),
        optimizers.register_optimizer_step_post_hook(after_step),
    ]


def _replaced(watch: Watch, engine: Any) -> list[tuple[Any, str, Callable]]:
    """(where, name, how to make the new one of the old one)."""

    def ask_gradients(original):
        @wraps(original)
        def call(*args, **kwargs):
            watch.backward_begins()
            made = original(*args, **kwargs)
            watch.forget_candidates()  # the gradient of the loss is no activation
            return made

        return call

    def backward(run):
        @wraps(run)
        def call(*args, **kwargs):
            try:
                return run(*args, **kwargs)
            finally:
                watch.look_at_gradients()

        return call

    def save(original):
        @wraps(original)
        def call(self, *tensors):
            watch.note_candidate(tensors)
            return original(self, *tensors)

        return call

    def resize(original):
        def call(storage, size):
            result = original(storage, size)
            watch.resized(storage)
            return result

        return call

    def convert(original):
        @wraps(original)
        def call(module, *args, **kwargs):  # of `model.bfloat16()`: it calls that of each child
            result = original(module, *args, **kwargs)
            watch.claim(module._parameters, PARAMETERS)
            return result

        return call

    def swap(original):
        @wraps(original)
        def call(one, other):
            with watch.let_go(one, other):
                return original(one, other)

        return call

    def collective(original):
        def call(group, post, outer):
            watch.claim(post.outputs, GATHERED if post.kind == "all_gather" else BUFFERS)
            watch.claim(post.inputs, BUFFERS)
            return original(group, post, outer)

        return call

    return [
        (torch.autograd, "_make_grads", ask_gradients),
        (torch.autograd, "_engine_run_backward", backward),
        (FunctionCtx, "save_for_backward", save),
        (torch.UntypedStorage, "resize_", resize),
        (torch.nn.Module, "_apply", convert),
        (torch.utils, "swap_tensors", swap),
        *([(engine, "collective", collective)] if engine is not None else []),
    ]


def _named_operation(watch: Watch, func, args: tuple, kwargs: dict, out: Any) -> None:
    """What an operation's own name says of whose its tensors are."""
    if func is _DETACH:
        node = _node()
        if node is not None and node.name() == _ACCUMULATE:  # what `.grad` becomes
            watch.claim(out, GRADIENTS)
        return
    claims = _CLAIMS.get(func.namespace)
    if claims is not None:
        claims(watch, func._opname, args, kwargs, out)


def _of_c10d(watch: Watch, name: str, args: tuple, kwargs: dict, out: Any) -> None:
    if "allgather" in name or "all_gather" in name:
        watch.claim(args[0], GATHERED)
    watch.claim(args, BUFFERS)


def _of_functional(watch: Watch, name: str, args: tuple, kwargs: dict, out: Any) -> None:
    watch.claim(out, GATHERED if "all_gather" in name else BUFFERS)


def _of_fsdp(watch: Watch, name: str, args: tuple, kwargs: dict, out: Any) -> None:
    if "split_with_sizes_copy" in name:  # from the gathered bytes to whole parameters
        watch.claim(kwargs.get("out"), GATHERED)


_CLAIMS = {"c10d": _of_c10d, "_c10d_functional": _of_functional, "fsdp": _of_fsdp}
