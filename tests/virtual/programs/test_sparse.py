"""Sparse gradients: every rank brings as many entries as it has, and the sum is gloo's to the bit."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hw_utils import WorkerFailed, launch, simulate

WORLD_SIZE = 3
MODE = "plain"


def entries(rank: int, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A sparse matrix with `n` entries, some of them at one place."""
    generator = torch.Generator().manual_seed(rank)
    places = torch.randint(0, 4, (2, n), generator=generator)
    values = torch.randn(n, generator=generator).to(dtype)
    return torch.sparse_coo_tensor(places, values, (4, 4), check_invariants=False)


def add(rank: int, world_size: int) -> list[torch.Tensor]:
    blocking, waited_for = entries(rank, rank + 1), entries(rank, 5, torch.float64)
    work = dist.all_reduce(waited_for, async_op=True)
    dist.all_reduce(blocking)
    work.wait()
    return [blocking.to_dense(), waited_for.to_dense()]


def train(rank: int, world_size: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.EmbeddingBag(6, 4, sparse=True, mode="sum"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.tensor([[rank, step + 1, 5]])).square().sum().backward()
        optimizer.step()
    return [model.module.weight.detach()]


def add_in_a_process(rank: int, world_size: int) -> list[torch.Tensor]:
    global MODE
    MODE = f"rank {rank}"
    return add(rank, world_size)


@pytest.mark.parametrize("worker", [add, train, add_in_a_process])
def test_sparse_tensors_are_added_up_alike_on_both_engines(worker):
    real = launch(worker, WORLD_SIZE, echo=False)
    virtual = simulate(worker, WORLD_SIZE, echo=False)
    for ours, theirs in zip(virtual.results, real.results):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    sent = [[run.trace.bytes_sent(rank) for rank in range(WORLD_SIZE)] for run in (real, virtual)]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("engine", [launch, simulate])
def test_the_largest_of_sparse_tensors_is_refused_as_by_gloo(engine):
    def worker(rank: int, world_size: int) -> None:
        dist.all_reduce(entries(rank, 2), dist.ReduceOp.MAX)

    with pytest.raises(WorkerFailed, match=r"sparse tensors only works with ReduceOp\.SUM"):
        engine(worker, 2, echo=False)
