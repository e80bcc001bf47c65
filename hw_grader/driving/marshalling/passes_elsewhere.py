"""Passes of a model whose class, or whose clock, the driver keeps: it makes them, and autograd goes through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._C._functorch import peek_interpreter_stack, pop_dynamic_layer_stack, push_dynamic_layer_stack

from hw_grader.driving.marshalling.model_and_optimizer_states import tensors_of
from hw_utils.core.calls.dispatch import beneath_transforms


class Shell(nn.Module):
    """The parameters of a model whose class the driver keeps; the driver makes its passes."""

    at: Any = None  # [number of the lent thing, path of the module in it]

    def forward(self, *args: Any, **options: Any) -> Any:
        return run_elsewhere(self, self.at, args, options)


def shell_of(parameters: dict, buffers: dict, modules: dict, training: bool) -> Shell:
    shell = Shell()
    for kept, own in ((shell._parameters, parameters), (shell._buffers, buffers), (shell._modules, modules)):
        kept.update(own)
    shell.training = training
    return shell


def run_elsewhere(module: nn.Module, at: Any, args: tuple, options: dict) -> Any:
    """The output of the driver's model with this one's weights; autograd, or torch.func, goes through, once."""
    from hw_grader.driving.forwarded_calls import calling

    given = [t for t in tensors_in([args, options]) if t.requires_grad]
    weights = {name: t for name, t in module.named_parameters(remove_duplicate=False) if t.requires_grad}
    followed = torch.is_grad_enabled() and bool(given or weights)
    names = list(weights) if followed else []
    training = [part.training for part in module.modules()]
    with outside_transforms():
        state = {name: beneath_transforms(t).detach() for name, t in tensors_of(module).items()}
        plain = (beneath_transforms(t) for t in tensors_in([args, options]))
        asked = [*_with_tensors([list(args), options], plain), state, names, training]
        (output, buffers), number = calling().make_pass(at, asked, followed)
        for name, buffer in module.named_buffers():
            beneath_transforms(buffer).detach().copy_(buffers[name])
        outputs = tensors_in(output)
        made = _Made(number, [t.requires_grad for t in outputs], tuple(t.detach() for t in outputs))
    if not followed or not any(made.are_followed):
        return _with_tensors(output, iter(made.outputs))
    return _with_tensors(output, iter(_Pass.apply(made, *given, *weights.values())))


@dataclass(frozen=True)
class _Made:
    """A pass that the driver has made."""

    number: int
    are_followed: list[bool]
    outputs: tuple[torch.Tensor, ...]


class _Pass(torch.autograd.Function):
    """Outputs that came from the driver; their backward pass is asked for there."""

    @staticmethod
    def forward(made: _Made, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return made.outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, ...]) -> None:
        ctx.made = inputs[0]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for t, is_followed in zip(output, ctx.made.are_followed) if not is_followed))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: torch.Tensor | None):
        from hw_grader.driving.forwarded_calls import calling

        with outside_transforms():
            asked = [None if u is None else beneath_transforms(u) for u in upstream]
            asked = [u for u, is_followed in zip(asked, ctx.made.are_followed) if is_followed]
            return None, *calling().make_backward(ctx.made.number, asked)


@contextmanager
def outside_transforms() -> Iterator[None]:
    """While it lasts, no transform of torch.func wraps what is made."""
    with ExitStack() as stack:
        while peek_interpreter_stack() is not None:
            stack.callback(push_dynamic_layer_stack, pop_dynamic_layer_stack())
        yield


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def _with_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The value with the next tensors in the place of its own."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {key: _with_tensors(part, tensors) for key, part in value.items()}
    return type(value)(_with_tensors(part, tensors) for part in value) if isinstance(value, list | tuple) else value
