"""Ranks that wait for each other without torch: in sockets, locks of files, event loops."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from hw_utils import launch, simulate

both = pytest.mark.parametrize("engine", [launch, partial(simulate, compute="free")], ids=["launch", "simulate"])


def through_sockets(rank: int, world_size: int) -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = [None] * world_size
        dist.all_gather_object(ports, server.getsockname()[1])
        if rank == 0:
            with socket.create_connection(("127.0.0.1", ports[1])) as line:
                line.sendall(b"ping")
                return line.recv(4).decode()
        line, _ = server.accept()
        with line:
            line.sendall(b"pong")
            return line.recv(4).decode()


def one_after_the_other(rank: int, world_size: int, path: str) -> str:
    with open(path, "a+") as file:
        if rank == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()
        if rank == 0:
            dist.recv(torch.zeros(1), 1)  # rank 2 waits for the lock before rank 1 can send
            file.write("first")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)
            return "first"
        if rank == 1:
            dist.send(torch.ones(1), 0)
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        return file.read()


def in_an_event_loop(rank: int, world_size: int) -> float:
    async def part() -> float:
        tensor = torch.full((1,), rank + 1.0)
        await asyncio.get_running_loop().run_in_executor(None, dist.all_reduce, tensor)
        await asyncio.sleep(0.01)
        return tensor.item()

    return asyncio.run(part())


def sleeping(rank: int, world_size: int) -> float:
    started_s = time.perf_counter()
    asyncio.run(asyncio.sleep(100))
    return round(time.perf_counter() - started_s, 6)


@both
def test_ranks_talk_through_sockets_of_their_own(engine):
    assert engine(through_sockets, 2, echo=False).results == ["pong", "ping"]


@both
def test_a_rank_waits_for_a_file_that_another_one_has_locked(engine, tmp_path):
    assert engine(one_after_the_other, 3, args=(str(tmp_path / "lock"),), echo=False).results == ["first"] * 3


@both
def test_a_thread_of_an_event_loop_communicates(engine):
    assert engine(in_an_event_loop, 2, echo=False).results == [3.0, 3.0]


def test_an_event_loop_sleeps_in_virtual_time():
    assert simulate(sleeping, 3, compute="free", echo=False).results == [100.0] * 3
