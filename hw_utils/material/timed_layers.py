"""Models whose backward pass takes a known time, and an optimizer whose step does, so that nothing is left to luck."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn


class TakesTime(torch.autograd.Function):
    """The identity; its backward pass takes `backward_s` seconds (virtual ones under `simulate`)."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.backward_s)
        return gradient, None


class TimedSGD(torch.optim.SGD):
    """SGD whose step takes `step_s` seconds, and whose zero_grad `zero_s`."""

    def __init__(self, parameters, step_s: float, zero_s: float = 0.0, **settings) -> None:
        super().__init__(parameters, **settings)
        self.defaults |= {"step_s": step_s, "zero_s": zero_s}  # of an optimizer's attributes this one is pickled

    def zero_grad(self, set_to_none=True):
        time.sleep(self.defaults["zero_s"])
        return super().zero_grad(set_to_none)

    def step(self, closure=None):
        time.sleep(self.defaults["step_s"])
        return super().step(closure)


class TimedChain(nn.Module):
    """Layers in a row, each scaling (n,) by its weight (n,); each one's backward pass takes `backward_s`.

    `layers[k].weight` has its gradient as soon as that layer's time is over; the last layer comes first.
    """

    def __init__(self, n_layers: int, n_elements: int, backward_s: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Scale(n_elements) for _ in range(n_layers))
        self.backward_s = backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = TakesTime.apply(layer(x), self.backward_s)
        return x.sum()


class Scale(nn.Module):
    """x * weight, element by element, whatever the weight's shape is; it starts at ones."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.flatten()


class Branches(nn.Module):
    """Four layers (5, 3, 4 and 2 elements) of which an input may use any; `shared` is used twice.

    The first layer's weight is a matrix of one row, so that who hands over flat gradients is found out.
    forward(x, use): x is (5,); `use` names the layers that take part: "first", "shared", "frozen", "last". If "last"
    is named first, it comes before the others, and its gradient after theirs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = Scale(1, 5), Scale(3)
        self.frozen, self.last = Scale(4), Scale(2)
        self.frozen.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor, use: tuple[str, ...]) -> torch.Tensor:
        if use[0] == "last":
            x, use = torch.cat([self.last(x[:2]), x[2:]]), use[1:]
        y = self.first(x) if "first" in use else x
        y = self.shared(self.shared(y[:3])) if "shared" in use else y[:3]
        y = y * self.frozen(x[:4])[1] if "frozen" in use else y
        return (self.last(y[:2]) if "last" in use else y[:2]).sum()


class TimedBatches(torch.utils.data.IterableDataset):
    """Batches that come one after the other, each after `seconds`; as an iterator it has no length and no places."""

    def __init__(self, batches: list[tuple[torch.Tensor, torch.Tensor]], seconds: float) -> None:
        self.batches, self.seconds = batches, seconds

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in self.batches:
            time.sleep(self.seconds)
            yield batch

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        raise TypeError("'TimedBatches' object is not subscriptable")
