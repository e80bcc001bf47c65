"""Attention on DTensors of a virtual device: by heads and by examples, the numbers of one process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from hw_utils import simulate

SHAPE = (2, 4, 6, 8)  # examples, heads, places, features


def _given(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def _attend(tensors: list[torch.Tensor], is_causal: bool) -> list[torch.Tensor]:
    """The output, and the gradients of queries, keys and values."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    output = F.scaled_dot_product_attention(*leaves, is_causal=is_causal)
    output.square().sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def _sharded(rank: int, world_size: int, dim: int, is_causal: bool) -> list[torch.Tensor]:
    mesh = init_device_mesh("cuda", (world_size,))
    cut = [distribute_tensor(_given(seed), mesh, [Shard(dim)]) for seed in range(3)]
    found = _attend(cut, is_causal)
    assert all(t.placements == (Shard(dim),) for t in found)
    return [t.full_tensor() for t in found]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dim", [0, 1], ids=["by examples", "by heads"])
def test_attention_is_that_of_one_process(dim, is_causal):
    run = simulate(_sharded, 2, args=(dim, is_causal), cluster="h100x2", compute="device", echo=False)
    expected = _attend([_given(seed) for seed in range(3)], is_causal)
    for rank in range(2):
        for got, right in zip(run[rank], expected, strict=True):
            torch.testing.assert_close(got, right)
    assert {event.op for event in run.trace} <= {"all_gather_into_tensor", "all_gather", "broadcast", "scatter"}
