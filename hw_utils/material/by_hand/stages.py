"""A stage of a pipeline whose passes take a known time and are written down, with numbers that can be compared.

A pass is (rank, kind, micro-batch, chunk, start_s, end_s); kinds are F (forward), B (backward) and, where a backward
pass is cut in two, W (the weight's gradient).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from hw_utils.material.by_hand.layers import drawn_weights

Pass = tuple[int, str, int, int, float, float]


class TimedStage:
    """Stage `number` of `n_stages`: y = x + tanh(x @ w), and behind the last one the mean square of y - target.

    `forward(k, x)` and `backward(k, gradient)` take micro-batch k through, in any order; what forward got is kept
    until backward is over. `gradient` is the sum of the weight's gradients, `passes` what happened, and when.
    """

    LENDS = ("forward", "backward")  # what an answer may use

    def __init__(
        self, number: int, n_stages: int, width: int, forward_s: float, backward_s: float,
        targets: Sequence[torch.Tensor] = (),
    ) -> None:  # fmt: skip
        """targets: one a micro-batch, (n, width) each; the last stage compares with them, all know their rows."""
        self.number, self.is_last, self.targets = number, number == n_stages - 1, targets
        self.width, self.forward_s, self.backward_s = width, forward_s, backward_s
        self.weight = drawn_weights(width, width, number)
        self.gradient = torch.zeros_like(self.weight)
        self.kept: dict[int, torch.Tensor] = {}
        self.passes: list[Pass] = []

    def forward(self, k: int, x: torch.Tensor) -> torch.Tensor:
        """The output of micro-batch k, (n, width), after forward_s seconds; in the last stage its mean loss, a number.

        Raises:
            RuntimeError: micro-batch k is in this stage already.
            ValueError: x has not micro-batch k's rows and the width, or there is no micro-batch k.
        """
        if k in self.kept:
            raise RuntimeError(f"stage {self.number} holds micro-batch {k} already: backward({k}, ...) has not come")
        if x.dim() != 2 or x.shape[1] != self.width:
            raise ValueError(f"stage {self.number} takes (n, {self.width}), got {tuple(x.shape)} as micro-batch {k}")
        if (self.is_last or self.targets) and not 0 <= k < len(self.targets):
            raise ValueError(f"there is no micro-batch {k}: they are 0 to {len(self.targets) - 1}")
        if self.targets and len(x) != len(self.targets[k]):
            raise ValueError(f"micro-batch {k} has {len(self.targets[k])} rows, stage {self.number} got {len(x)}")
        self.kept[k] = x.detach().clone()
        self._take(self.forward_s, "F", k)
        return self._output(k, self.kept[k], self.weight)

    def backward(self, k: int, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of micro-batch k's input, given that of its output, after backward_s seconds.

        Raises:
            RuntimeError: micro-batch k is not in this stage.
            ValueError: the gradient has not the shape and dtype of the output; a plain number will do for a loss.
        """
        if k not in self.kept:
            raise RuntimeError(f"stage {self.number} does not hold micro-batch {k}: forward({k}, x) comes first")
        with torch.enable_grad():
            x, w = self.kept[k].requires_grad_(), self.weight.detach().requires_grad_()
            y = self._output(k, x, w)
            upstream = gradient if isinstance(gradient, torch.Tensor) else torch.as_tensor(gradient, dtype=y.dtype)
            if upstream.dtype != y.dtype:
                raise ValueError(f"stage {self.number}, micro-batch {k}: its gradients are {y.dtype}, got a tensor of "
                                 f"{upstream.dtype}; a plain float is taken, too")  # fmt: skip
            if upstream.shape != y.shape:
                of = "loss, a number" if self.is_last else f"output, {tuple(y.shape)}"
                raise ValueError(f"stage {self.number}, micro-batch {k}: backward takes the gradient of the {of}; got "
                                 f"{tuple(upstream.shape)}")  # fmt: skip
            of_x, of_w = torch.autograd.grad(y, (x, w), upstream)
        self.gradient += of_w
        self._take(self.backward_s, "B", k)
        del self.kept[k]
        return of_x

    def _output(self, k: int, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x + torch.tanh(x @ w)
        return (y - self.targets[k]).square().mean() if self.is_last else y

    def _take(self, seconds: float, kind: str, k: int) -> None:
        start_s = time.perf_counter()
        time.sleep(seconds)
        self.passes.append((self.number, kind, k, 0, start_s, time.perf_counter()))


class _TakesTime(torch.autograd.Function):
    """The identity of input and weight; both its passes take the stage's time and are written down."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor, stage: TimedModule):
        ctx.stage, ctx.k = stage, stage.n_begun
        stage.n_begun += 1
        stage.take(stage.forward_s, "F", ctx.k)
        return x.view_as(x), weight.view_as(weight)

    @staticmethod
    def backward(ctx, of_x: torch.Tensor, of_weight: torch.Tensor):
        ctx.stage.take(ctx.stage.backward_s, "B", ctx.k)
        return of_x, of_weight, None


class TimedModule(torch.nn.Module):
    """The same stage for autograd, and so for torch's own schedules; micro-batches are counted as they come."""

    def __init__(self, rank: int, width: int, forward_s: float, backward_s: float, chunk: int = 0, seed: int = 0):
        super().__init__()
        self.rank, self.chunk, self.forward_s, self.backward_s = rank, chunk, forward_s, backward_s
        self.weight = torch.nn.Parameter(drawn_weights(width, width, seed))
        self.n_begun = 0
        self.passes: list[Pass] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, w = _TakesTime.apply(x, self.weight, self)
        return x + torch.tanh(x @ w)

    def take(self, seconds: float, kind: str, k: int) -> None:
        """Sleeps, and writes the pass down."""
        start_s = time.perf_counter()
        time.sleep(seconds)
        self.passes.append((self.rank, kind, k, self.chunk, start_s, time.perf_counter()))
