"""Attention on DTensors of a virtual device: by heads and by examples, the numbers of one process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from hw_utils import simulate

SHAPE = (2, 4, 6, 8)  # examples, heads, places, features


def _given(seed: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _attend(tensors: list[torch.Tensor], is_causal: bool, mask: torch.Tensor | None = None) -> list[torch.Tensor]:
    """The output, and the gradients of queries, keys and values."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    output = F.scaled_dot_product_attention(*leaves, attn_mask=mask, is_causal=is_causal)
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


def _masked(rank: int, world_size: int, dim: int, shape: tuple[int, ...], is_cut: bool) -> list[torch.Tensor]:
    mesh = init_device_mesh("cuda", (world_size,))
    cut = [distribute_tensor(_given(seed), mesh, [Shard(dim)]) for seed in range(3)]
    mask = distribute_tensor(_given(3, shape), mesh, [Shard(dim) if is_cut else Replicate()])
    return [t.full_tensor() for t in _attend(cut, False, mask)]


@pytest.mark.parametrize(
    ("shape", "dim", "is_cut"),
    [((6, 6), 0, False), ((2, 1, 6, 6), 0, True), ((2, 1, 6, 6), 0, False), ((2, 1, 6, 6), 1, False),
     ((1, 4, 6, 6), 1, True), ((2, 4, 6, 6), 1, False)],
)  # fmt: skip
def test_a_mask_is_cut_with_what_it_is_for_or_whole(shape, dim, is_cut):
    run = simulate(_masked, 2, args=(dim, shape, is_cut), cluster="h100x2", compute="device", echo=False)
    expected = _attend([_given(seed) for seed in range(3)], False, _given(3, shape))
    for got, right in zip(run[0], expected, strict=True):
        torch.testing.assert_close(got, right)
