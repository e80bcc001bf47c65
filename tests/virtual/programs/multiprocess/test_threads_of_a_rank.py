"""Threads of one rank that communicate at once, each on a group of its own, as dcp.async_save's does."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

from hw_utils import Deadlock, launch, simulate

DEVICES = {"cluster": "h100x2", "compute": "device"}
on_both = pytest.mark.parametrize("options", [{"compute": "free"}, DEVICES], ids=["on processors", "on devices"])


def _sum(group, value: float) -> float:
    tensor = torch.full((1,), value)
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def beside_in_turn(rank: int, world_size: int) -> float:
    """The main thread of rank 0 waits for its thread, whose sum waits for rank 1's, which begins after a barrier."""
    side = dist.new_group()
    with ThreadPoolExecutor(1) as pool:
        if rank == 0:
            future = pool.submit(_sum, side, 1.0)
            dist.barrier()
            return future.result()
        dist.barrier()
        return pool.submit(_sum, side, 2.0).result()


@on_both
def test_threads_of_a_rank_wait_beside_each_other(options):
    run = simulate(beside_in_turn, 2, echo=False, **options)
    assert run.results == [3.0, 3.0]


def four_threads(rank: int, world_size: int) -> list[float]:
    """Each on its group; the ranks start them in opposite orders, and none ends before the others have begun."""
    groups = [dist.new_group() for _ in range(4)]
    found, have_begun = [0.0] * 4, threading.Barrier(4)

    def work(k: int) -> None:
        have_begun.wait()
        found[k] = sum(_sum(groups[k], 10.0**k) for _ in range(3))

    threads = [threading.Thread(target=work, args=(k,)) for k in (range(4) if rank else reversed(range(4)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@on_both
def test_four_threads_of_each_rank_communicate_at_once(options):
    run = simulate(
        four_threads, 3, echo=False, **{**options, **({"cluster": "h100x3"} if "cluster" in options else {})}
    )
    assert run.results == [[9.0, 90.0, 900.0, 9000.0]] * 3


def left_in_flight(rank: int, world_size: int) -> list[float]:
    """One thread's collectives are over while another one waits: each tensor gets what is its own."""
    side, mine, theirs = dist.new_group(), torch.ones(1), [torch.full((1,), float(k)) for k in range(3)]

    def work() -> None:
        works = [dist.all_reduce(each, group=side, async_op=True) for each in theirs]
        works[-1].wait()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        dist.all_reduce(mine)
    thread.join()
    return [mine.item(), *(each.item() for each in theirs)]


def test_what_one_threads_collectives_give_is_left_to_it():
    run = simulate(left_in_flight, 2, compute="free", echo=False)
    assert run.results == [[2.0**20, 0.0, 2.0, 4.0]] * 2


def not_joined(rank: int, world_size: int) -> None:
    side = dist.new_group()
    threading.Thread(target=lambda: print(_sum(side, rank + 1.0))).start()


def test_a_rank_ends_when_its_threads_have():
    assert simulate(not_joined, 2, compute="free", echo=False).output == ["3.0\n", "3.0\n"]


def joined(rank: int, world_size: int) -> tuple[float, float]:
    thread = threading.Thread(target=time.sleep, args=(2.0,))
    thread.start()
    time.sleep(1.0)
    between = time.perf_counter()
    thread.join()
    return between, time.perf_counter()


def polls(rank: int, world_size: int) -> float:
    """The first thread waits for one that does nothing but sleep and look at the clock."""

    def poll() -> None:
        end_s = time.monotonic() + 3000
        while time.monotonic() < end_s:
            time.sleep(1)

    thread = threading.Thread(target=poll)
    thread.start()
    thread.join()
    return time.monotonic()


def test_a_thread_that_sleeps_again_and_again_is_waited_for():
    assert simulate(polls, 2, compute="free", echo=False, timeout_s=60).results == [3000.0, 3000.0]


def test_threads_sleep_beside_each_other_on_clocks_of_their_own():
    assert simulate(joined, 1, compute="free", echo=False).results == [(1.0, 2.0)]


def stuck(rank: int, world_size: int) -> None:
    side = dist.new_group()

    def second() -> None:
        _sum(side, 1.0)
        if rank == 0:
            _sum(side, 2.0)

    thread = threading.Thread(target=second, name="the second")
    thread.start()
    dist.barrier()
    if rank == 0:
        dist.recv(torch.zeros(1), 1)
    else:
        thread.join()
        dist.all_reduce(torch.zeros(1))


@on_both
def test_a_deadlock_names_every_thread_that_waits(options):
    with pytest.raises(Deadlock) as caught:
        simulate(stuck, 2, echo=False, **options)
    rows = [(row.rank, row.op, row.peers, row.note) for row in caught.value.rows]
    assert rows == [
        (0, "recv", (1,), ""),
        (0, "all_reduce", (1,), "in its thread the second"),
        (1, "all_reduce", (0,), ""),
    ]
    assert caught.value.cycle == [0, 1]
    assert all(row.where is not None for row in caught.value.rows)


def stuck_beside_a_heart(rank: int, world_size: int, is_sleeping: bool) -> None:
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.02):
            pass

    def sleep() -> None:
        while True:
            time.sleep(60)

    threading.Thread(target=sleep if is_sleeping else beat, daemon=True).start()
    dist.recv(torch.zeros(1), 1 - rank)


@pytest.mark.parametrize("is_sleeping", [False, True], ids=["waits", "sleeps"])
def test_a_thread_that_only_looks_now_and_then_hides_no_deadlock(is_sleeping):
    with pytest.raises(Deadlock) as caught:
        simulate(stuck_beside_a_heart, 2, args=(is_sleeping,), compute="free", echo=False, timeout_s=30)
    assert caught.value.cycle == [0, 1]


def saves_while_it_trains(rank: int, world_size: int, folder: str) -> float:
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(rank)
    model = fully_shard(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 8)).cuda())
    optimizer, future = torch.optim.SGD(model.parameters(), 0.1), None
    for step in range(3):
        model(torch.ones(8, 16, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if future is not None:
            future.result()
        future = dcp.async_save({"model": get_model_state_dict(model)}, checkpoint_id=f"{folder}/{step}")
    future.result()
    loaded = {"model": get_model_state_dict(model)}
    dcp.load(loaded, checkpoint_id=f"{folder}/2")
    return sum(p.full_tensor().sum().item() for p in model.parameters())


def test_a_checkpoint_is_saved_while_the_model_trains(tmp_path):
    run = simulate(saves_while_it_trains, 2, args=(str(tmp_path),), echo=False, **DEVICES)
    assert run[0] == run[1]
    assert {"gather_object", "reduce_scatter_tensor"} <= {event.op for event in run.trace}


OF_THREAD = threading.local()
OF_THREAD.value = 3


def set_for_the_first_thread(rank: int, world_size: int) -> tuple[int, int, float]:
    from torch.testing._internal.common_device_type import DeviceTypeTestBase

    total = all_reduce(torch.ones(1), "sum", dist.group.WORLD)  # C++ code calls: greenlets do not do
    return OF_THREAD.value, DeviceTypeTestBase._tls.precision, total.item()


@pytest.mark.parametrize("engine", [launch, simulate])
def test_what_a_package_has_set_for_its_first_thread_is_there(engine):
    assert engine(set_for_the_first_thread, 2, echo=False).results == [(3, 0, 2.0)] * 2


OF_THREAD.stack = ["first"]


def asks_for_what_may_be_there(rank: int, world_size: int) -> tuple[int, list[str], float]:
    total = all_reduce(torch.ones(1), "sum", dist.group.WORLD)  # C++ code calls: greenlets do not do
    getattr(OF_THREAD, "stack", []).append(f"of {rank}")
    dist.barrier()
    return getattr(OF_THREAD, "value", 0), getattr(OF_THREAD, "stack", []), total.item()


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_package_does_not_take_its_default_for_what_it_has_set(engine):
    found = engine(asks_for_what_may_be_there, 2, echo=False).results
    assert found == [(3, ["first", f"of {rank}"], 2.0) for rank in range(2)]
