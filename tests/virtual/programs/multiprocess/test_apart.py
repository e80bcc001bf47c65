"""Ranks with processes of their own: the values, times and errors of ranks that share one, and what they print."""

from __future__ import annotations

import faulthandler
import os
import re
import subprocess
import sys
import threading
import uuid
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp._debug_utils import SimpleProfiler

from hw_utils import Deadlock, WorkerFailed, simulate

NUMBER = None
ITEMS: list[int] = []


def messages(rank: int, world_size: int, number: int):
    """What every kind of call gives."""
    x, y = torch.full((3,), float(rank)), torch.empty(3)
    sending = dist.isend(x, (rank + 1) % world_size)
    dist.recv(y, (rank - 1) % world_size)
    sending.wait()
    gathered: list = [None] * world_size
    dist.all_gather_object(gathered, {"rank": number})
    group = dist.new_group([0, 2])
    z = torch.ones(2) * rank
    if rank in (0, 2):
        dist.all_reduce(z, group=group)
    parts = torch.empty(world_size)
    dist.all_to_all_single(parts, torch.tensor([float(10 * rank + r) for r in range(world_size)]))
    any_source = torch.empty(1)
    source = dist.recv(any_source) if rank == 0 else dist.send(torch.ones(1), 0) if rank == 1 else None
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: f.value()[0].item() + 1)
    return y.tolist(), gathered, z.tolist(), [p.item() for p in parts], source, future.wait()


def of_processes(rank: int, world_size: int):
    global NUMBER  # makes each rank a process
    NUMBER = rank
    return messages(rank, world_size, NUMBER)


def of_greenlets(rank: int, world_size: int):
    return messages(rank, world_size, rank)


def test_processes_and_greenlets_give_the_same_values_times_and_ledger():
    apart, together = (simulate(w, 3, compute="free", echo=False) for w in (of_processes, of_greenlets))
    assert apart.results == together.results
    assert apart.seconds == together.seconds
    rows = [[(e.rank, e.op, e.peer, e.n_bytes, e.start_s, e.end_s) for e in run.trace] for run in (apart, together)]
    assert rows[0] == rows[1]


def prints(rank: int, world_size: int) -> None:
    print("before", rank)
    print(f"took {uuid.uuid4().int} s")  # as a measured time, another one in each attempt
    ITEMS.append(rank)
    dist.barrier()
    print("after", len(ITEMS))


def test_what_ranks_print_is_shown_once(capsys):
    run = simulate(prints, 2, compute="free")
    assert [text.split()[:3] for text in run.output] == [["before", "0", "took"], ["before", "1", "took"]]
    shown = sorted(re.sub(r"\d{9,}", "some", line) for line in capsys.readouterr().out.splitlines())
    assert shown == [
        f"[rank {rank}] {what}" for rank in (0, 1) for what in ("after 1", f"before {rank}", "took some s")
    ]


def ends(rank: int, world_size: int, how: str) -> None:
    ITEMS.append(rank)
    dist.barrier()
    if rank == 1:
        if how == "exit":
            os._exit(3)
        raise ValueError("of rank 1")
    dist.barrier()


@pytest.mark.parametrize(("how", "reason"), [("exit", "exit code 3"), ("raise", "ValueError: of rank 1")])
def test_a_process_that_ends_is_named(how: str, reason: str):
    with pytest.raises(WorkerFailed, match=reason) as caught:
        simulate(ends, 3, (how,), compute="free", echo=False)
    assert [f.rank for f in caught.value.failures] == [1]
    assert "ranks 0, 2 waited for rank 1" in str(caught.value)


def waits_in_cpp(rank: int, world_size: int) -> None:
    torch._C.Future.wait(torch.futures.Future())


def waits_for_a_key(rank: int, world_size: int) -> bytes:
    return dist.distributed_c10d._get_default_store().get("nobody sets this")


def waits_for_its_own_lock(rank: int, world_size: int) -> None:
    if rank == 0:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    dist.barrier()


@pytest.mark.parametrize("worker", [waits_in_cpp, waits_for_a_key, waits_for_its_own_lock])
def test_a_wait_that_nobody_can_end_is_named_with_the_students_line(worker):
    with pytest.raises(Deadlock) as caught:
        simulate(worker, 2, compute="free", echo=False, timeout_s=30)
    assert "test_apart.py" in str(caught.value)


def in_a_thread(rank: int, world_size: int) -> float:
    x = torch.ones(1)
    thread = threading.Thread(target=dist.all_reduce, args=(x,))
    thread.start()
    thread.join()
    return x.item()


def test_a_thread_of_a_rank_communicates():
    assert simulate(in_a_thread, 3, compute="free", echo=False).results == [3.0] * 3


def profiled(rank: int, world_size: int) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3))
    return [e.name for e in profile.events() if e.is_async and e.input_shapes == [[3]]]


def test_ranks_profile_at_the_same_time():
    assert simulate(profiled, 3, compute="free", echo=False).results == [["gloo:all_reduce"]] * 3


def waits_for_the_last_only(rank: int, world_size: int) -> list:
    parts = [torch.full((n,), float(rank)) for n in (1, 2)]
    first, second = ([torch.zeros_like(part) for _ in range(world_size)] for part in parts)
    dist.all_gather(first, parts[0], async_op=True)
    dist.all_gather(second, parts[1], async_op=True).wait()
    return [t.tolist() for t in (*first, *second)]


@pytest.mark.parametrize("needs", ["", "a process a rank"])
def test_what_nobody_waited_for_has_come_with_what_came_later(needs):
    run = simulate(_own(waits_for_the_last_only) if needs else waits_for_the_last_only, 2, compute="free", echo=False)
    assert run.results == [[[0.0], [1.0], [0.0, 0.0], [1.0, 1.0]]] * 2


def gives_up(rank: int, world_size: int) -> str:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=3))
    if rank == 0:
        try:
            dist.barrier(group)
        except RuntimeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("needs", ["", "a process a rank"])
def test_a_groups_own_timeout_ends_a_wait(needs):
    run = simulate(_own(gives_up) if needs else gives_up, 2, compute="free", echo=False)
    assert run.results == ["barrier: Timed out waiting 3000ms for rank 1", ""]
    assert run.seconds >= 3


class _own:
    """The worker, after something that each rank needs a process for."""

    def __init__(self, worker) -> None:
        self.worker = worker

    def __call__(self, rank: int, world_size: int):
        os.chdir("/")
        return self.worker(rank, world_size)


def starts_a_program(rank: int, world_size: int, is_apart: bool) -> int:
    if is_apart:
        ITEMS.append(rank)
        dist.barrier()
    faulthandler.enable()
    print("before", flush=True)
    return subprocess.run(["true"], stdout=sys.stdout, stderr=sys.stderr, check=True).returncode


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
def test_what_a_rank_prints_to_is_a_file_for_others_too(is_apart):
    run = simulate(starts_a_program, 2, (is_apart,), echo=False)
    assert (list(run), run.output[1]) == ([0, 0], "before\n")


def measured_by_a_package(rank: int, world_size: int) -> list[str]:
    """FSDP's own profiler keeps what is under way in its class, and forgets all of it at the end."""
    if rank == 0:
        with SimpleProfiler.profile("mine"):
            dist.barrier()
            dist.barrier()
        return list(SimpleProfiler.results)
    dist.barrier()
    SimpleProfiler.reset()
    dist.barrier()
    return list(SimpleProfiler.results)


def test_a_package_that_another_rank_made_forget_is_asked_again():
    assert simulate(measured_by_a_package, 2, echo=False).results == [["mine"], []]
