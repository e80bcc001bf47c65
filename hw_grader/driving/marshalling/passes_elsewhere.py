"""Passes of a model whose class, or whose clock, the driver keeps: it makes them, and autograd goes through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hw_grader.driving.marshalling.model_and_optimizer_states import (
    tensors_of,
)


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
    """The output of the driver's model with this one's weights; autograd goes through, once."""
    from hw_grader.driving.forwarded_calls import calling

    given = [t for t in tensors_in([args, options]) if t.requires_grad]
    weights = {name: t for name, t in module.named_parameters(remove_duplicate=False) if t.requires_grad}
    followed = torch.is_grad_enabled() and bool(given or weights)
    state = {name: t.detach() for name, t in tensors_of(module).items()}
    names = list(weights) if followed else []
    training = [part.training for part in module.modules()]
    (output, buffers), number = calling().make_pass(at, [list(args), options, state, names, training], followed)
    for name, buffer in module.named_buffers():
        buffer.detach().copy_(buffers[name])
    outputs = tensors_in(output)
    if not followed or not any(t.requires_grad for t in outputs):
        return _detached(output, iter([t.detach() for t in outputs]))
    inputs = [*given, *weights.values()]
    return _detached(output, iter(_Pass.apply(number, [t.requires_grad for t in outputs],
                                              [t.detach() for t in outputs], *inputs)))  # fmt: skip


class _Pass(torch.autograd.Function):
    """Outputs that came from the driver; their backward pass is asked for there."""

    @staticmethod
    def forward(ctx: Any, number: int, are_followed: list[bool], outputs: list[torch.Tensor], *inputs: torch.Tensor):
        ctx.number, ctx.are_followed = number, are_followed
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for t, is_followed in zip(outputs, are_followed) if not is_followed))
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: torch.Tensor | None):
        from hw_grader.driving.forwarded_calls import calling

        upstream = [u for u, is_followed in zip(upstream, ctx.are_followed) if is_followed]
        return None, None, None, *calling().make_backward(ctx.number, upstream)


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def _detached(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The value with the next tensors in the place of its own."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {key: _detached(part, tensors) for key, part in value.items()}
    return type(value)(_detached(part, tensors) for part in value) if isinstance(value, list | tuple) else value
