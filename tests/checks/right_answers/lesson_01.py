"""Right answers to lesson 01 that are not the reference's."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from time import perf_counter_ns

import numpy as np
import torch
import torch.distributed as dist

from tests.checks.right_answers import right, right_values

right_values("lesson_01.hello", "a_lambda", lambda rank, world_size, name: print("Rank", f"{rank}:", f"Hello, {name}!"))


@right("lesson_01.hello")
def writes_in_pieces(rank, world_size, name):
    sys.stdout.write(f"Rank {dist.get_rank()}: ")
    print("Hello, ", name, sep="", end="!\n")
    return True


right_values("lesson_01.times", "whole_numbers", {"isend_s": 0, "wait_s": 4, "send_s": 6})
right_values("lesson_01.read_a_hang", "lists", {r: ["send", (r + 1) % 4] for r in range(4)})
right_values("lesson_01.read_a_hang", "by_a_loop", {r: ("send", r + 1 if r < 3 else 0) for r in (3, 2, 1, 0)})


@right("lesson_01.ping_pong")
def two_functions(rank, world_size, n_rounds):
    ball = torch.tensor([0.0])

    def serve():
        dist.isend(ball.add_(1), dst=1).wait()
        dist.irecv(ball, src=1).wait()

    def give_back():
        dist.recv(ball)
        dist.send(ball.add_(1), 0)

    player = {0: serve, 1: give_back}.get(rank, lambda: None)
    [player() for _ in range(n_rounds)]
    return float(ball)


@right("lesson_01.ping_pong")
def leaves_at_once(rank, world_size, n_rounds):
    if rank >= 2:
        return 0
    ball, other = torch.zeros(1, dtype=torch.float32), 1 - rank
    for move in range(2 * n_rounds):
        if move % 2 == rank:
            ball = ball + 1
            dist.send(ball, other)
        else:
            dist.recv(ball, other)
    return float(ball)


@right("lesson_01.ping_pong")
def looks_into_its_folder(rank, world_size, n_rounds):
    os.chdir(os.getcwd())  # from here on the rank needs a process of its own
    ball = torch.zeros(1)
    for _ in range(n_rounds if rank < 2 else 0):
        if rank == 1:
            dist.recv(ball, 0)
        dist.send(ball.add_(1), 1 - rank)
        if rank == 0:
            dist.recv(ball, 1)
    return ball.item()


@right("lesson_01.ping_pong")
def in_threads_of_a_loop(rank, world_size, n_rounds):
    async def play():
        ball = torch.zeros(1)
        for move in range(2 * n_rounds if rank < 2 else 0):
            if move % 2 == rank:
                ball += 1
            await asyncio.to_thread(dist.send if move % 2 == rank else dist.recv, ball, 1 - rank)
        return ball.item()

    return asyncio.run(play())


_pools = {}


@right("lesson_01.relay")
def by_a_thread_that_stays(rank, world_size, numbers, close_ring=False):
    pool = _pools.setdefault(rank, ThreadPoolExecutor(1))
    total = numbers[rank].clone()

    def wait_for(function, peer):
        came = torch.empty_like(total)
        pool.submit(function, came if function is dist.recv else total, peer % world_size).result()
        return came

    if world_size == 1:
        return total
    if rank:
        total += wait_for(dist.recv, rank - 1)
    if rank < world_size - 1 or close_ring:
        wait_for(dist.send, rank + 1)
    if close_ring:
        return wait_for(dist.recv, -1) if rank == 0 else None
    return total if rank == world_size - 1 else None


@right("lesson_01.relay")
def adds_into_what_came(rank, world_size, numbers, close_ring=False):
    mine = numbers[rank]
    if rank:
        came = torch.zeros_like(mine)
        dist.recv(came, src=rank - 1)
        mine = came + mine
    last = rank == world_size - 1
    if world_size == 1 or (last and not close_ring):
        return mine
    dist.send(mine, (rank + 1) % world_size)
    if close_ring and rank == 0:
        total = torch.empty_like(mine)
        dist.recv(total, world_size - 1)
        return total
    return None


@right("lesson_01.relay")
def starts_receives_early(rank, world_size, numbers, close_ring=False):
    total = torch.empty_like(numbers[rank])
    before = rank - 1 if rank else (world_size - 1 if close_ring and world_size > 1 else None)
    coming = None if before is None else dist.irecv(total, before)
    if rank:
        coming.wait()
    mine = total + numbers[rank] if rank else numbers[rank].clone()
    after = (rank + 1) % world_size
    if world_size > 1 and (after or close_ring):
        dist.isend(mine, after).wait()
    if not close_ring or world_size == 1:
        return mine if rank == world_size - 1 else None
    if rank == 0:
        coming.wait()
        return total


@right("lesson_01.shift_by_parity")
def odd_ranks_send_first(rank, world_size, values):
    right_, left = (rank + 1) % world_size, (rank + world_size - 1) % world_size
    theirs = torch.empty(1, dtype=torch.float64)
    calls = [lambda: dist.recv(theirs, left), lambda: dist.send(torch.tensor([values[rank]]).double(), right_)]
    for call in calls if rank % 2 == 0 else calls[::-1]:
        call()
    return theirs.numpy()[0]


@right("lesson_01.shift_at_once")
def irecv_then_send(rank, world_size, values):
    theirs = torch.zeros(())
    receiving = dist.irecv(theirs, (rank - 1) % world_size)
    dist.send(torch.tensor(values[rank]), (rank + 1) % world_size)
    receiving.wait()
    return theirs.item()


@right("lesson_01.shift_at_once")
def both_in_a_batch(rank, world_size, values):
    theirs = torch.zeros(1)
    mine = torch.tensor([values[rank]])
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, (rank + 1) % world_size), dist.P2POp(dist.irecv, theirs, (rank - 1) % world_size)]
    )
    for work in works:
        work.wait()
    return theirs.item()


@right("lesson_01.time_message")
def takes_the_mean_of_round_trips(rank, world_size, n_bytes, repeats):
    data, trips = torch.ones(n_bytes, dtype=torch.int8), []
    for _ in range(repeats):
        start = time.time()
        if rank == 0:
            dist.send(data, 1)
            dist.recv(data, 1)
            trips.append(time.time() - start)
        elif rank == 1:
            dist.recv(data, 0)
            dist.send(data, 0)
    return np.mean(trips) / 2 if rank == 0 else None


@right("lesson_01.time_message")
def warms_up_first(rank, world_size, n_bytes, repeats):
    def trip():
        first, then = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
        first(buffer, 1 - rank)
        then(buffer, 1 - rank)

    buffer = torch.empty(n_bytes, dtype=torch.bool).fill_(True)
    trip()
    start = time.monotonic()
    for _ in range(repeats):
        trip()
    return (time.monotonic() - start) / repeats / 2


@right("lesson_01.time_message")
def takes_the_middle_one(rank, world_size, n_bytes, repeats):
    data, trips = torch.empty(n_bytes, dtype=torch.uint8), []
    for _ in range(repeats):
        trips.append(-time.perf_counter_ns())
        for step in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
            step(data, 1 - rank)
        trips[-1] += time.perf_counter_ns()
    return sorted(trips)[repeats // 2] / 2e9


@right("lesson_01.time_message")
def asks_timeit(rank, world_size, n_bytes, repeats):
    data = torch.empty(n_bytes, dtype=torch.uint8)

    def trip():
        for step in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
            step(data, 1 - rank)

    return timeit.timeit(trip, number=repeats) / repeats / 2


@right("lesson_01.time_message")
def reads_every_clock(rank, world_size, n_bytes, repeats, first=time.monotonic_ns, second=timeit.default_timer):
    data, loop = torch.empty(n_bytes, dtype=torch.uint8), asyncio.new_event_loop()
    begun_s = first() / 1e9
    threading.Event().wait(0.5)
    loop.run_until_complete(asyncio.sleep(0.25))
    clocks = (lambda: first() / 1e9, second, time.time, loop.time, lambda: perf_counter_ns() / 1e9)
    day = datetime.now()
    starts = [clock() for clock in clocks]
    for _ in range(repeats):
        for step in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
            step(data, 1 - rank)
    all_s = [clock() - start for clock, start in zip(clocks, starts, strict=True)]
    loop.close()
    assert abs((datetime.now() - day).total_seconds() - all_s[0]) < 1e-5, day
    assert max(all_s) - min(all_s) < 1e-6, all_s
    assert starts[0] == starts[1] == begun_s + 0.75, starts
    return sum(all_s) / len(all_s) / repeats / 2


@right("lesson_01.fit_link")
def polyfit_with_weights(sizes_bytes, seconds):
    slope, latency_s = np.polyfit(sizes_bytes, seconds, 1, w=1 / np.array(seconds))
    return np.array([latency_s, 1 / slope])


@right("lesson_01.fit_link")
def normal_equations(sizes_bytes, seconds):
    x, y = np.array(sizes_bytes, float), np.array(seconds)
    a = np.stack([1 / y, x / y])
    latency_s, slope = np.linalg.solve(a @ a.T, a.sum(1))
    return [float(latency_s), 1 / slope]
