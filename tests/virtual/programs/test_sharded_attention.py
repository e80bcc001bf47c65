"""Attention on DTensors of a virtual device: by heads and by examples, the numbers of one process."""

from __future__ import annotations

import os
import threading

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.nn.attention import SDPBackend, sdpa_kernel

from hw_utils import simulate
from hw_utils.virtual.device import sharded_attention

SHAPE = (2, 4, 6, 8)  # examples, heads, places, features
LONG = (2, 4, 16, 8)  # cut by places


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


def _sharded_apart(rank: int, world_size: int, dim: int, is_causal: bool) -> list[torch.Tensor]:
    os.chdir("/")  # a process a rank
    return _sharded(rank, world_size, dim, is_causal)


def test_attention_has_its_rules_also_with_a_process_a_rank():
    run = simulate(_sharded_apart, 2, args=(1, True), cluster="h100x2", compute="device", echo=False)
    for got, right in zip(run[0], _attend([_given(seed) for seed in range(3)], True), strict=True):
        torch.testing.assert_close(got, right)


def test_whoever_returns_from_registering_finds_all_rules(monkeypatch):
    registered, is_in_the_middle, may_go_on = [], threading.Event(), threading.Event()

    def register_slowly():
        registered.append("forward")
        is_in_the_middle.set()
        may_go_on.wait()
        registered.append("backward")

    monkeypatch.setattr(sharded_attention, "_register", register_slowly)
    monkeypatch.setattr(sharded_attention, "_registered", [])
    found = []
    first = threading.Thread(target=sharded_attention.register)
    second = threading.Thread(target=lambda: (sharded_attention.register(), found.extend(registered)))
    first.start()
    is_in_the_middle.wait()
    second.start()
    may_go_on.set()
    first.join()
    second.join()
    assert found == ["forward", "backward"]
    assert registered == found


def _around_a_ring(rank: int, world_size: int, backend: str) -> list[torch.Tensor]:
    """As PyTorch's tutorial of context parallelism has it; output and gradients of the whole sequence."""
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (world_size,), mesh_dim_names=("cp",))
    buffers = [_given(seed, LONG).cuda() for seed in range(3)]
    with sdpa_kernel(getattr(SDPBackend, backend)), context_parallel(mesh, buffers=buffers, buffer_seq_dims=(2, 2, 2)):
        leaves = [buffer.detach().clone().requires_grad_() for buffer in buffers]
        output = F.scaled_dot_product_attention(*leaves, is_causal=True)
        output.square().sum().backward()
    found = [output.detach(), *(leaf.grad for leaf in leaves)]
    return context_parallel_unshard(mesh, found, [2] * 4)


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_sequence_cut_among_ranks_goes_around_a_ring(world_size, backend):
    run = simulate(_around_a_ring, world_size, (backend,), cluster=f"h100x{world_size}", compute="device", echo=False)
    expected = _attend([_given(seed, LONG) for seed in range(3)], True)
    for found in run:
        for got, right in zip(found, expected, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)
