"""Threads fail as ranks do: every way in which a run can go wrong ends, says why, and leaves nothing behind."""

from __future__ import annotations

import queue
import sys
import threading
import time

import pytest
import torch

from hw_utils.core.errors import Deadlock, TimedOut, WorkerFailed
from hw_utils.threads.deadlock import BlockedThreads
from hw_utils.threads.layer_trace import watch
from hw_utils.threads.run_threads import run_threads
from hw_utils.threads.thread_frames import Stand, stand_of


@pytest.fixture(autouse=True)
def _nothing_is_left_running():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before
    assert run_threads(lambda rank, world_size: rank, 3).results == [0, 1, 2]


def test_results_are_in_rank_order_whoever_ends_first():
    order, turn = [], [threading.Event() for _ in range(4)]

    def worker(rank, world_size):
        if rank < world_size - 1:
            turn[rank + 1].wait()
        order.append(rank)
        turn[rank].set()
        return 10 * rank

    assert run_threads(worker, 4).results == [0, 10, 20, 30]
    assert order == [3, 2, 1, 0]


def test_a_rank_that_raises_is_named_with_its_line_and_ends_the_others():
    barrier = threading.Barrier(4)

    def worker(rank, world_size):
        if rank == 2:
            raise LookupError("no such shard")
        barrier.wait()

    with pytest.raises(WorkerFailed) as failed:
        run_threads(worker, 4)
    error = failed.value
    assert (error.rank, error.reason, len(error.failures)) == (2, "LookupError: no such shard", 1)
    assert error.failures[0].where.source == 'raise LookupError("no such shard")'
    assert isinstance(error.__cause__, LookupError)
    assert "Barrier.wait" in str(error)
    assert run_threads(lambda rank, n: barrier.wait() in range(4), 4).results == [True] * 4  # usable again


def test_the_others_find_the_barrier_broken():
    barrier, seen, idents = threading.Barrier(2), [], []

    def worker(rank, world_size):
        if rank == 1:
            while not (idents and stand_of(sys._current_frames()[idents[0]]).thing is barrier):
                time.sleep(0)
            raise KeyError(rank)
        idents.append(threading.get_ident())
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            seen.append(rank)

    with pytest.raises(WorkerFailed):
        run_threads(worker, 2)
    assert seen == [0]


def test_every_rank_that_raises_is_told():
    def worker(rank, world_size):
        meet.wait()
        raise ValueError(f"odd {rank}")

    meet = threading.Barrier(3)
    with pytest.raises(WorkerFailed) as failed:
        run_threads(worker, 3)
    assert {f.reason for f in failed.value.failures} <= {f"ValueError: odd {r}" for r in range(3)}


def test_sys_exit_is_a_failure_of_its_rank():
    with pytest.raises(WorkerFailed) as failed:
        run_threads(lambda rank, world_size: sys.exit(3) if rank else None, 2)
    assert failed.value.failures[0].kind == "exit"
    assert failed.value.rank == 1


def test_a_barrier_that_one_rank_never_reaches_becomes_a_wait_for_table():
    barrier = threading.Barrier(4)

    def worker(rank, world_size):
        if rank != 3:
            barrier.wait()

    start_s = time.perf_counter()
    with pytest.raises(Deadlock) as failed:
        run_threads(worker, 4)
    assert time.perf_counter() - start_s < 20
    rows = failed.value.rows
    assert [row.rank for row in rows] == [0, 1, 2]
    assert {row.peers for row in rows} == {(3,)}
    assert rows[0].where.source == "barrier.wait()"
    assert "3 of 4 are here; rank 3 has returned" in str(failed.value)
    assert not barrier.broken
    assert barrier.n_waiting == 0


def test_locks_taken_in_opposite_orders_are_a_deadlock_that_ends():
    first, second, meet = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def worker(rank, world_size):
        mine, other = (first, second) if rank == 0 else (second, first)
        with mine:
            meet.wait()
            with other:
                return rank

    with pytest.raises(Deadlock) as failed:
        run_threads(worker, 2)
    assert [row.op for row in failed.value.rows] == ["Lock.acquire"] * 2
    assert not first.locked()
    assert not second.locked()


@pytest.mark.parametrize("fails", [False, True])
def test_a_barrier_inside_a_lock_is_told_and_the_lock_is_free_again(fails):
    lock, barrier = threading.Lock(), threading.Barrier(3)

    def worker(rank, world_size):
        if fails and rank == 2:
            while not barrier.n_waiting:
                time.sleep(0.01)
            time.sleep(0.05)
            raise KeyError("two")
        with lock:
            barrier.wait()

    with pytest.raises(WorkerFailed) as failed:
        run_threads(worker, 3)
    if fails:
        assert [f.reason for f in failed.value.failures] == ["KeyError: 'two'"]
    else:
        assert sorted(row.op for row in failed.value.rows) == ["Barrier.wait", "Lock.acquire", "Lock.acquire"]
    assert not lock.locked()


@pytest.mark.parametrize(
    "wait",
    [
        threading.Event().wait,
        queue.Queue().get,
        threading.Semaphore(0).acquire,
        lambda: threading.Lock().__enter__() and None,
    ],
    ids=["Event.wait", "Queue.get", "Semaphore.acquire", "a fresh lock"],
)
def test_whatever_the_ranks_wait_in_is_named(wait, request):
    name = request.node.callspec.id
    if name == "a fresh lock":
        assert run_threads(lambda rank, world_size: wait(), 2).results == [None, None]
        return
    with pytest.raises(Deadlock) as failed:
        run_threads(lambda rank, world_size: wait(), 2)
    assert {row.op for row in failed.value.rows} == {name}


@pytest.mark.parametrize("lock", [threading.Lock(), threading.RLock()], ids=["Lock", "RLock"])
def test_a_lock_that_is_never_given_back_is_told(lock):
    meet = threading.Barrier(2)

    def worker(rank, world_size):
        meet.wait()  # both live at once: a later thread may get the number of an earlier one, and own its RLock
        lock.acquire()

    with pytest.raises(Deadlock, match="nobody releases"):
        run_threads(worker, 2)


def test_who_may_just_have_been_woken_is_not_taken_for_blocked():
    blocked, waits = BlockedThreads(), Stand("a.py", 3, "Barrier.wait", object(), (object(),))
    for now_s in (0.1, 2.0):
        assert not blocked.are_still({0: Stand("a.py", 1), 1: waits}, now_s)
    assert not blocked.are_still({1: waits}, 2.05)  # rank 0 came to the barrier, and has returned
    assert blocked.are_still({1: waits}, 2.4)


def test_a_slow_rank_is_not_taken_for_a_deadlock():
    barrier = threading.Barrier(3)

    def worker(rank, world_size):
        if rank == 0:
            until_s = time.monotonic() + 1.0
            while time.monotonic() < until_s:
                torch.ones(50, 50) @ torch.ones(50, 50)
        barrier.wait()
        return "met"

    assert run_threads(worker, 3).results == ["met"] * 3


def test_a_sleeping_rank_is_not_taken_for_a_deadlock():
    barrier = threading.Barrier(2)

    def worker(rank, world_size):
        time.sleep(0.8 * rank)
        barrier.wait()
        return rank

    assert run_threads(worker, 2).results == [0, 1]


def spins():
    while True:
        pass


def sleeps():
    time.sleep(1000)


def catches_all_and_spins():
    while True:
        try:  # noqa: SIM105
            sum(range(10))
        except:  # noqa: E722
            pass  # what a student may write


def catches_all_and_sleeps():
    while True:
        try:  # noqa: SIM105
            time.sleep(1000)
        except:  # noqa: E722
            pass  # what a student may write


@pytest.mark.parametrize("loop", [spins, sleeps, catches_all_and_spins, catches_all_and_sleeps])
def test_a_loop_is_ended_at_the_time_limit_and_named(loop):
    def worker(rank, world_size):
        if rank == 1:
            loop()

    with pytest.raises(TimedOut) as failed:
        run_threads(worker, 3, timeout_s=0.3)
    assert [f.rank for f in failed.value.failures] == [1]
    assert "could not be ended" not in str(failed.value)


def test_a_barrier_inside_a_handler_that_catches_all_is_ended_too():
    barrier = threading.Barrier(3)

    def worker(rank, world_size):
        while True:
            try:  # noqa: SIM105
                barrier.wait()
            except:  # noqa: E722
                pass  # what a student may write

    with pytest.raises(Deadlock):
        run_threads(worker, 2)


def test_what_ranks_print_is_kept_a_rank_and_shown_in_whole_lines(capsys):
    def worker(rank, world_size):
        print("one", end=" ")
        print("line", rank)
        print("no end", end="")

    run = run_threads(worker, 2)
    assert run.output == ["one line 0\nno end", "one line 1\nno end"]
    shown = capsys.readouterr().out.splitlines()
    assert sorted(shown) == ["[rank 0] no end", "[rank 0] one line 0", "[rank 1] no end", "[rank 1] one line 1"]


def test_a_watched_context_fills_the_trace():
    class Alone:
        world_size = 2

        def all_gather(self, tensor, rank, group_id):
            return [tensor, tensor]

        def all_reduce(self, tensor, rank, group_id, op="sum"):
            return tensor

    def worker(rank, world_size, context):
        context.all_gather(torch.ones(6), rank, "a")
        return context.all_reduce(torch.ones(4), rank, "b", "mean").tolist(), context.world_size

    run = run_threads(worker, 2, (watch(Alone()),))
    assert run.trace.calls == {"all_gather": 2, "all_reduce": 2}
    assert run.trace.bytes_sent(0) == 6 * 4 + 2 * (4 * 4 // 2)  # both by the ring: (N - 1) and 2 (N - 1) / N tensors
    assert [event.n_bytes for event in run.trace.of_rank(1)] == [24, 16]
    assert run[0] == ([1.0] * 4, 2)


@pytest.mark.parametrize("world_size", [0, -1, 257])
def test_a_wrong_world_size_is_refused(world_size):
    with pytest.raises(ValueError, match="world_size must be"):
        run_threads(lambda rank, n: rank, world_size)
