"""What every rank must know before a training run starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from hw_utils.material import data, models

METHODS = ("one", "gather_scatter", "all_reduce", "ddp")


@dataclass(frozen=True)
class Job:
    """One training run; the same on every rank, but for `rank` itself.

    `model()` and `data()` are called in the rank, so that no weights and no images travel to it.
    `total_batch` counts the examples of all ranks together: a rank sees total_batch / world_size of them.

    Raises:
        ValueError: an unknown method, a number that is not positive.
    """

    method: str = "all_reduce"  # "one", "gather_scatter", "all_reduce" or "ddp"
    model: Callable[[], nn.Module] = models.VGG11
    data: Callable[[], Iterable[Dataset]] = data.cifar10  # training set, test set
    total_batch: int = 256
    n_iterations: int = 196  # 50,000 / 256: one epoch of CIFAR-10
    lr: float = 0.1
    momentum: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        for name in ("total_batch", "n_iterations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def settings(self) -> dict[str, Any]:
        """The job as plain data, for a report."""
        named = {name: getattr(getattr(self, name), "__name__", "?") for name in ("model", "data")}
        numbers = ("method", "total_batch", "n_iterations", "lr", "momentum", "seed")
        return {**named, **{name: getattr(self, name) for name in numbers}}
