"""A layer with hand-written forward and backward, as a module that autograd can go through."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Handmade(nn.Module):
    """Runs `layer.forward(x)` and `layer.backward(grad_output)` where autograd comes by.

    The layer has `weight`, which becomes this module's parameter (the same memory), and its backward leaves
    `weight_grad` and returns the gradient of its input.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        object.__setattr__(self, "layer", layer)  # not a submodule, even if it is a module: one parameter, one name
        self.weight = nn.Parameter(layer.weight.detach())
        if isinstance(layer, nn.Module):
            del layer.weight  # a module's parameter makes room for no plain tensor
        layer.weight = self.weight.data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return HandmadeLayer.apply(x, self.weight, self.layer)


class HandmadeLayer(torch.autograd.Function):
    """What autograd calls; its errors name it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: Any) -> torch.Tensor:
        ctx.layer = layer
        return layer.forward(x)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple:
        grad_input = ctx.layer.backward(grad_output)
        return grad_input, ctx.layer.weight_grad, None
