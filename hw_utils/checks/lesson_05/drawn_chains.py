"""Chains of layers that take a known time, each with a gradient that no other layer has and no other rank."""

from __future__ import annotations

import numpy as np
import torch

from hw_utils.checks import drawn_numbers
from hw_utils.material.timed_layers import TimedChain


def chain(n_layers: int, n_elements: int, backward_s: float) -> TimedChain:
    """Its weights are the same on all ranks, and others in each layer."""
    model = TimedChain(n_layers, n_elements, backward_s)
    for k, p in enumerate(model.parameters()):
        draw = torch.Generator().manual_seed(drawn_numbers.seed(60 + k, "layer"))
        p.data.copy_(0.5 + torch.rand(n_elements, generator=draw, dtype=torch.float64))
    return model


def input_of(rank: int, n_elements: int) -> torch.Tensor:
    """What a rank's chain is given, (n_elements,)."""
    draw = torch.Generator().manual_seed(drawn_numbers.seed(40 + rank))
    return torch.randn(n_elements, generator=draw, dtype=torch.float64)


def gradients_of(world_size: int, n_layers: int, n_elements: int) -> list[list[np.ndarray]]:
    """Each layer's gradient on each rank, (n_elements,), from one backward pass."""
    found: list[list[np.ndarray]] = [[] for _ in range(n_layers)]
    for rank in range(world_size):
        model = chain(n_layers, n_elements, 0.0)
        model(input_of(rank, n_elements)).backward()
        for of_layer, p in zip(found, model.parameters()):
            of_layer.append(p.grad.numpy())
    return found
