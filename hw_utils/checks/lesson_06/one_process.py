"""What lesson 06's data parallelism is compared with: the same steps of one process that has the whole batch."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import mse_loss

from hw_utils.checks.lesson_06.shards import random_tensor
from hw_utils.material.models import SimpleMLP

MOMENTUM = 0.5
STEP_SIZE, LESSONS_STEP_SIZE = 0.04, 0.05  # of SGD; not the lesson's, so that one written in shows


def training_set(n_examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = random_tensor(seed, n_examples, 2)
    return x, (x[:, :1] * x[:, 1:]).tanh() + 0.1 * random_tensor(seed + 1, n_examples, 1)


def model_of(seed: int, apart: int = 0) -> torch.nn.Module:
    """The model that a rank begins with; `apart`: another one for each number but 0."""
    model = SimpleMLP(2, 8, 1).double()
    for k, p in enumerate(model.parameters()):
        p.data.copy_(random_tensor(seed + 10 + k, *p.shape) + 0.1 * apart * random_tensor(seed + 20 + k, *p.shape))
    return model


def shards_of(n_examples: int, world_size: int) -> list[list[int]]:
    """Which examples a rank has: every N-th one, so that no rank's shard looks like another's."""
    return [list(range(rank, n_examples, world_size)) for rank in range(world_size)]


def train_plainly(
    n_examples: int,
    n_steps: int,
    seed: int,
    *,
    weights=None,
    factor=1.0,
    clear=True,
    back=None,
    momentum=MOMENTUM,
    n_times=1,
) -> tuple[list[float], np.ndarray]:
    """(losses, weights after) of one process that has the whole batch; `weights` of the examples in the gradient,
    `back(gradients, parameters)` what the optimizer finds in their place."""
    x, y = training_set(n_examples, seed)
    model = model_of(seed)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=STEP_SIZE * factor, momentum=momentum)
    losses = []
    for _ in range(n_steps):
        if clear:
            optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        (loss if weights is None else ((model(x) - y).square()[:, 0] * weights).sum()).backward()
        if back:
            for p, gradient in zip(parameters, back(torch.cat([p.grad.flatten() for p in parameters]), parameters)):
                p.grad = gradient
        for _ in range(n_times):
            optimizer.step()
        losses.append(loss.item())
    return losses, flat_weights(model)


def flat_weights(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
