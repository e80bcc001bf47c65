"""Layers without autograd: forward and backward are calls, and what a layer holds meanwhile is in a slot to look at.

Both compute y = x + dropout(tanh(x @ w.T)) @ w for x (n, width) and w (hidden, width), and take a known time.
"""

from __future__ import annotations

import time

import torch


def _forward(w: torch.Tensor, x: torch.Tensor, mask: torch.Tensor | float) -> torch.Tensor:
    return x + (torch.tanh(x @ w.T) * mask) @ w


def _gradients(
    w: torch.Tensor, x: torch.Tensor, mask: torch.Tensor | float, upstream: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of x and of w."""
    with torch.enable_grad():
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad(_forward(w, x, mask), (x, w), upstream)


def drawn_weights(hidden: int, width: int, seed: int) -> torch.Tensor:
    """float64 (hidden, width)."""
    return 0.3 * torch.randn(hidden, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class KeepingLayer:
    """A layer that keeps the input of its forward pass, or does not: backward needs it.

    `saved` is what it keeps now, None or a tensor; `gradient` the sum of its weight's gradients.
    """

    LENDS = ("forward", "backward")  # what an answer may use

    def __init__(self, weight: torch.Tensor, forward_s: float = 0.0, backward_s: float = 0.0, dropout: float = 0.0):
        self.weight, self.dropout = weight, dropout
        self.forward_s, self.backward_s = forward_s, backward_s
        self.saved = self.mask = None
        self.gradient = torch.zeros_like(weight)
        self.watch = None  # called after each forward and backward pass with their name

    def forward(self, x: torch.Tensor, keep: bool = True) -> torch.Tensor:
        """The output, after forward_s seconds; with keep=False the input is forgotten at once. Draws a new mask."""
        time.sleep(self.forward_s)
        mask = 1.0
        if self.dropout:
            mask = (torch.rand(len(x), len(self.weight)) >= self.dropout).to(x.dtype) / (1 - self.dropout)
        y = _forward(self.weight, x, mask)
        if keep:
            self.saved, self.mask = x.clone(), mask
        self._tell("forward")
        return y

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the kept input, after backward_s seconds; the input is forgotten then.

        Raises:
            RuntimeError: no input is kept.
        """
        if self.saved is None:
            raise RuntimeError("this layer has kept no input to go back through: forward(x) comes first, with keep")
        time.sleep(self.backward_s)
        gradient, own = _gradients(self.weight, self.saved, self.mask, gradient)
        self.gradient += own
        self._tell("backward")
        self.saved = self.mask = None
        return gradient

    def _tell(self, what: str) -> None:
        if self.watch is not None:
            self.watch(what)


class SlotLayer:
    """A layer of which a rank has one shard; for a pass its slot must be filled with all of the weights.

    `shard` is this rank's piece, (ceil(n_elements / world_size),), the flat weight cut in the order of ranks and
    padded with zeros; `full` is the slot. `log` has (what, layer, seconds on the rank's clock) of all that happened.
    """

    LENDS = ("shard", "n_elements", "fill", "clear", "forward", "backward")

    def __init__(
        self, number: int, weight: torch.Tensor, rank: int, world_size: int, forward_s: float, backward_s: float,
        log: list[tuple[str, int, float]],
    ) -> None:  # fmt: skip
        self.number, self.shape, self.n_elements = number, weight.shape, weight.numel()
        size = -(-self.n_elements // world_size)
        padded = torch.nn.functional.pad(weight.flatten(), (0, size * world_size - self.n_elements))
        self.shard = padded[rank * size : (rank + 1) * size].clone()
        self.forward_s, self.backward_s, self.log = forward_s, backward_s, log
        self.full = self.saved = None

    def fill(self, full: torch.Tensor) -> None:
        """Puts the whole weight, flat and without padding, into the slot.

        Raises:
            ValueError: it has another shape.
        """
        if tuple(full.shape) != (self.n_elements,):
            raise ValueError(f"the slot of layer {self.number} takes ({self.n_elements},), got {tuple(full.shape)}")
        self.full = full.detach().clone()
        self._note("fill")

    def clear(self) -> None:
        """Empties the slot."""
        self.full = None
        self._note("clear")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output, after forward_s seconds; keeps x."""
        w = self._weight("forward")
        time.sleep(self.forward_s)
        self.saved = x.detach().clone()
        return _forward(w, self.saved, 1.0)

    def backward(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of the input and of the weights (n_elements,), after backward_s seconds."""
        w = self._weight("backward")
        if self.saved is None:
            raise RuntimeError(f"layer {self.number} had no forward pass to go back through")
        time.sleep(self.backward_s)
        gradient, own = _gradients(w, self.saved, 1.0, gradient)
        self.saved = None
        return gradient, own.flatten()

    def _weight(self, what: str) -> torch.Tensor:
        if self.full is None:
            raise RuntimeError(f"layer {self.number} has no weights for its {what} pass: its slot is empty")
        self._note(what)
        return self.full.view(self.shape)

    def _note(self, what: str) -> None:
        self.log.append((what, self.number, time.perf_counter()))
