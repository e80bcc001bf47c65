"""What ends a rank is told as that rank's, whatever carries it: an error of torch's C++ code, a time limit."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives

from hw_utils import TimedOut, WorkerFailed, simulate


def _shapes_do_not_fit(rank: int, world_size: int, depth: int, n_messages: int) -> None:
    received = torch.empty(1)
    for _ in range(n_messages):
        sending = dist.isend(torch.ones(1), (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
    if depth:
        _shapes_do_not_fit(rank, world_size, depth - 1, 0)
    torch.ones(3, 5).t().view(-1)


@pytest.mark.parametrize(("world_size", "depth", "n_messages"), [(1, 0, 0), (4, 0, 0), (4, 40, 20), (64, 0, 2)])
def test_torchs_own_error_in_a_rank_kills_nothing(world_size: int, depth: int, n_messages: int):
    with pytest.raises(WorkerFailed, match="RuntimeError: view size is not compatible"):
        simulate(_shapes_do_not_fit, world_size, (depth, n_messages), compute="free", echo=False)


def _needs_threads(rank: int, world_size: int, what: str) -> None:
    _functional_collectives.all_reduce(torch.ones(1), "sum", dist.group.WORLD).wait()
    received = torch.zeros(1)
    while what == "messages":
        dist.send(received, 1) if rank == 0 else dist.recv(received, 0)
    while what == "collectives":
        dist.all_reduce(received)
    while what == "computes" and rank == 1:
        received.add_(1)
    while what == "catches everything" and rank == 1:
        try:
            received.add_(1)
        except BaseException:
            continue
    dist.barrier()


@pytest.mark.parametrize("what", ["messages", "collectives", "computes", "catches everything"])
def test_a_time_limit_names_the_line_of_a_rank_that_is_a_thread(what: str):
    with pytest.raises(TimedOut, match="still busy after 2 s") as caught:
        simulate(_needs_threads, 2, (what,), timeout_s=2, echo=False)
    assert caught.value.failures[0].where.file == __file__
