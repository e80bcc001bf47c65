"""The settings of one training: what, with what, until when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset

from hw_utils.material import data
from hw_utils.material.models import LeNet5


def quiet_digits() -> data.Data:
    """The embedded digits, without the line that says so: every rank loads them."""
    return data.digits(say=False)


@dataclass(frozen=True)
class Recipe:
    """One training, the same on every rank: by default LeNet-5 on the embedded digits, until 97 % are right.

    >>> Recipe(seed=3).order(epoch=0, n_examples=5)
    tensor([3, 0, 2, 1, 4])
    """

    seed: int = 0  # of the initial weights and of the order of the examples
    batch_size: int = 8  # examples a rank and iteration
    step: float = 0.05  # alpha, the learning rate; the same for every N
    momentum: float = 0.0
    target: float = 0.97  # test accuracy at which training stops
    every: int = 5  # iterations between two looks at the test set
    max_iterations: int = 1_500  # where a training that never gets there ends
    model: Callable[[], torch.nn.Module] = LeNet5
    data: Callable[[], data.Data] = quiet_digits

    def start(self, rank: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, Dataset, Dataset]:
        """(model, optimizer, training set, test set); every rank starts from other weights, on purpose."""
        train_set, test_set = self.data()
        torch.manual_seed(1_000 * self.seed + rank)
        model = self.model()
        return model, torch.optim.SGD(model.parameters(), self.step, momentum=self.momentum), train_set, test_set

    def order(self, epoch: int, n_examples: int) -> torch.Tensor:
        """The order in which an epoch takes the examples: int64 (n_examples,), the same on every rank."""
        generator = torch.Generator().manual_seed(100_003 * self.seed + epoch)
        return torch.randperm(n_examples, generator=generator)
