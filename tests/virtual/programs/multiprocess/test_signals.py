"""Signals that a program handles itself are its own, and its timer goes on with the rank's virtual clock."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from hw_utils import TimedOut, WorkerFailed, launch, simulate

both = pytest.mark.parametrize("engine", [launch, partial(simulate, compute="free")], ids=["launch", "simulate"])


def rings(rank: int, world_size: int) -> None:
    os.environ["OF_RANK"] = str(rank)
    threading.Thread(target=int).start()  # that makes it a program whose ranks have processes
    if rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        signal.pause()
    dist.barrier()


@both
def test_an_alarm_that_nobody_handles_ends_the_rank_that_set_it(engine):
    with pytest.raises(WorkerFailed, match="rank 1: killed by SIGALRM") as caught:
        engine(rings, 2, echo=False)
    assert [f.rank for f in caught.value.failures] == [1]


def is_rung(
    rank: int, world_size: int, every_s: float, first_s: float = 0.05, sleeps_s: float = 0.18
) -> tuple[list[float], float]:
    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic() - begin_s))
    begin_s = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, first_s, every_s)
    time.sleep(sleeps_s)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return rung, time.monotonic() - begin_s


@both
def test_a_timer_rings_while_its_rank_sleeps(engine):
    for rung, slept_s in engine(is_rung, 2, (0,), echo=False).results:
        assert len(rung) == 1
        assert rung[0] < slept_s


def test_a_timer_rings_again_and_again_on_the_virtual_clock():
    times_s = (50.0, 50.0, 180.0)  # beside which the real seconds in between, which count as well, are none
    for rung, slept_s in simulate(is_rung, 2, times_s, compute="free", echo=False).results:
        assert [round(late - early) for early, late in pairwise(rung)] == [50, 50]
        assert slept_s == pytest.approx(180)


def waits_for_the_other(rank: int, world_size: int) -> float:
    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(rank))
    if rank == 0:
        dist.recv(torch.zeros(1), 1)
        time.sleep(0.1)  # from when the timer runs
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        dist.send(torch.zeros(1), 0)
    dist.barrier()
    return len(rung)


@both
def test_a_timer_goes_on_while_its_rank_waits_for_another(engine):
    assert engine(waits_for_the_other, 2, echo=False).results == [0, 1]


def told_before_the_end(rank: int, world_size: int, path: str) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: open(path, "w").close())  # as schedulers send it before the time is up
    if rank == 1:
        threading.Event().wait()  # for ever
    dist.barrier()


@both
def test_a_rank_whose_program_handles_sigusr1_is_asked_where_it_is_all_the_same(engine, tmp_path):
    path = str(tmp_path / "handled")
    with pytest.raises((TimedOut, WorkerFailed, RuntimeError), match=r"threading\.Event") as caught:
        engine(told_before_the_end, 2, (path,), timeout_s=8, echo=False)
    assert "for ever" in str(caught.value)
    assert not os.path.exists(path)
