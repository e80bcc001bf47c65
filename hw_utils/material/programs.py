"""Small programs to read and predict (lesson 01). Each is a worker for `launch` and `simulate`, on two ranks or more.

They count as the reader's own code: a wait-for table names their lines.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist


def both_send_first(rank: int, world_size: int) -> float:
    other = 1 - rank
    mine, theirs = torch.tensor([float(rank)]), torch.empty(1)
    dist.send(mine, other)
    dist.recv(theirs, other)
    return theirs.item()


def one_sends_first(rank: int, world_size: int) -> float:
    other = 1 - rank
    mine, theirs = torch.tensor([float(rank)]), torch.empty(1)
    if rank == 0:
        dist.send(mine, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(mine, other)
    return theirs.item()


def wait_comes_last(rank: int, world_size: int) -> float:
    other = 1 - rank
    mine, theirs = torch.tensor([float(rank)]), torch.empty(1)
    sending = dist.isend(mine, other)
    dist.recv(theirs, other)
    sending.wait()
    return theirs.item()


def changed_too_early(rank: int, world_size: int) -> float:
    number = torch.tensor([float(rank)])
    if rank == 0:
        sending = dist.isend(number, 1)
        number.fill_(100.0)
        sending.wait()
    else:
        dist.recv(number, 0)
    return number.item()


def one_recv_too_many(rank: int, world_size: int) -> float:
    number = torch.tensor([float(rank)])
    if rank == 0:
        dist.send(number, 1)
    else:
        dist.recv(number, 0)
        dist.recv(number, 0)
    return number.item()


def late_receiver(rank: int, world_size: int) -> dict[str, float]:
    """Rank 1 is busy for 2 seconds before it receives; rank 0 notes when each of its calls returned."""
    number = torch.ones(1)
    if rank == 1:
        time.sleep(2.0)
        dist.recv(number, 0)
        dist.recv(number, 0)
        return {}
    start = time.perf_counter()
    sending = dist.isend(number, 1)
    isend_s = time.perf_counter() - start
    sending.wait()
    wait_s = time.perf_counter() - start
    dist.send(number, 1)
    return {"isend_s": isend_s, "wait_s": wait_s, "send_s": time.perf_counter() - start}


def everybody_sends(rank: int, world_size: int) -> float:
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    mine, theirs = torch.tensor([float(rank)]), torch.empty(1)
    dist.send(mine, right)
    dist.recv(theirs, left)
    return theirs.item()
