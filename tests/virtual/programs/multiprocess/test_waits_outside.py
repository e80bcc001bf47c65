"""Ranks that wait for each other without torch: in sockets, locks of files, event loops."""

from __future__ import annotations

import asyncio
import fcntl
import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.distributed as dist

from hw_utils import launch, simulate
from hw_utils.virtual import stuck_threads

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


def _no_item() -> None:
    with pytest.raises(queue.Empty):
        queue.Queue().get(timeout=2.0)


def timeouts(rank: int, world_size: int) -> list[float]:
    seen = []
    for wait in (lambda: threading.Event().wait(0.5), lambda: threading.Event().wait(0), _no_item):
        began_s = time.perf_counter()
        wait()
        seen.append(round(time.perf_counter() - began_s, 6))
    return seen


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
def test_a_wait_with_a_timeout_passes_on_the_clock_of_the_rank(is_apart):
    worker = after_a_thread if is_apart else timeouts
    assert simulate(worker, 2, compute="free", echo=False).results == [[0.5, 0.0, 2.0]] * 2


def after_a_thread(rank: int, world_size: int) -> list[float]:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return timeouts(rank, world_size)


def handed_on(rank: int, world_size: int) -> list[float]:
    items, is_set, seen = queue.Queue(), threading.Event(), []

    def produce() -> None:
        for item in range(2):
            time.sleep(0.3)
            items.put(item)
        time.sleep(1.0)
        is_set.set()

    thread = threading.Thread(target=produce)
    thread.start()
    for wait in (items.get, items.get, is_set.wait, thread.join):
        wait()
        seen.append(round(time.perf_counter(), 6))
    with ThreadPoolExecutor(1) as pool:  # which of several takes a task is open
        list(pool.map(time.sleep, [0.5] * 2))
    return [*seen, round(time.perf_counter(), 6)]


def test_what_a_thread_hands_on_is_not_there_before_it():
    assert simulate(handed_on, 2, compute="free", echo=False).results == [[0.3, 0.6, 1.6, 1.6, 2.6]] * 2


def answered_slowly(rank: int, world_size: int, port: int) -> str:
    text = ""
    if rank == 0:
        with socket.create_connection(("127.0.0.1", port)) as line:
            text = line.recv(4).decode()
    dist.barrier()
    return text


def test_a_slow_answer_from_outside_is_waited_for_where_no_process_a_rank_is_to_be_had():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            line, _ = server.accept()
            with line:
                threading.Event().wait(2 * stuck_threads.LOOK_S * stuck_threads.LOOKS_OUTSIDE)
                line.sendall(b"pong")

        thread = threading.Thread(target=answer)
        thread.start()
        run = simulate(answered_slowly, 129, args=(server.getsockname()[1],), compute="free", echo=False)
        thread.join()
    assert run.results[0] == "pong"
