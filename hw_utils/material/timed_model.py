"""A model that has another one's parameters and only takes time: for a cluster that nobody has.

Its forward and backward pass sleep as long as the real layers would compute; under `simulate` that costs nothing.
Its gradients are zeros of the right shapes, so whatever synchronises them moves the right bytes at the right moment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import Dataset


def multiply_adds(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """Module name -> multiply-adds of its own parameters for one example, in the order of the forward pass.

    x: one example with a batch dimension of 1.
    """
    counts: dict[str, float] = {}

    def count(name: str):
        def hook(module, inputs, output):
            weight = module.weight  # a filter is used once an output pixel, a linear layer once
            pixels = output.numel() / output.shape[1]
            counts[name] = weight.numel() * pixels if weight.dim() > 1 else float(output.numel())

        return hook

    leaves = [(n, m) for n, m in model.named_modules() if isinstance(getattr(m, "weight", None), nn.Parameter)]
    hooks = [module.register_forward_hook(count(name)) for name, module in leaves]
    was_training = model.training
    with torch.no_grad():
        model.eval()(x)
    model.train(was_training)
    for hook in hooks:
        hook.remove()
    return counts


class _Layer(torch.autograd.Function):
    """Sleeps in both directions, and gives every parameter a gradient of zeros."""

    @staticmethod
    def forward(ctx, x, forward_s, backward_s, *parameters):
        ctx.backward_s, ctx.shapes = backward_s, [p.shape for p in parameters]
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx, upstream):
        time.sleep(ctx.backward_s)
        return upstream, None, None, *(torch.zeros(shape) for shape in ctx.shapes)


class OnPaper(nn.Module):
    """`model` on paper: a forward and backward pass of n examples takes n * example_s, a third of it forward.

    The time is shared out by each layer's multiply-adds on `example`, (1, channels, side, side).
    """

    def __init__(self, model: nn.Module, example: torch.Tensor, example_s: float, n_classes: int = 10) -> None:
        super().__init__()
        counts = multiply_adds(model, example)
        whole = sum(counts.values())
        self.n_classes = n_classes
        self.shares: Sequence[float] = [n / whole for n in counts.values()]
        self.example_s = example_s
        self.layers = nn.ModuleList(
            nn.ParameterList(nn.Parameter(torch.zeros_like(p)) for p in model.get_submodule(name).parameters(False))
            for name in counts
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(len(x), self.n_classes)
        layer_s = len(x) * self.example_s / 3  # the backward pass computes two products where forward computes one
        for share, parameters in zip(self.shares, self.layers):
            scores = _Layer.apply(scores, share * layer_s, 2 * share * layer_s, *parameters)
        return scores


class BlankImages(Dataset):
    """`n` images of nothing, all of class 0, that take no memory: (channels, side, side)."""

    def __init__(self, n: int, shape: Sequence[int] = (3, 32, 32)) -> None:
        self.n, self.shape = n, tuple(shape)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        if not -self.n <= place < self.n:
            raise IndexError(f"place must be below {self.n}, got {place}")
        return torch.zeros(1).expand(self.shape), 0
