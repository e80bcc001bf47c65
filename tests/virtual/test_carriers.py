"""An error that torch's C++ raises in a rank is that rank's error, wherever the ranks were before."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hw_utils import WorkerFailed, simulate


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
