"""What goes wrong in real ranks is reported: every failing rank, the reason, the student's own line."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hw_utils import TimedOut, launch
from hw_utils.core.pickling import Unpicklable
from hw_utils.processes.isolated_call import run_isolated
from tests.processes.launching import failing_launch, lines_of, require_no_process_left

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server and signals are Linux's")


GLOOS_LAST_WORDS = b"""terminate called after throwing an instance of 'gloo::IoException'
  what():  [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:39251
"""


def test_an_exception_on_one_rank_while_others_wait_names_that_rank_and_keeps_its_type():
    def worker(rank, world_size):
        if rank == 2:
            raise KeyError("weights")
        dist.barrier()

    error = failing_launch(worker)
    assert [f.rank for f in error.failures] == [2]
    assert (error.rank, error.failures[0].kind) == (2, "exception")
    assert isinstance(error.__cause__, KeyError)
    assert lines_of(error) == {2: 'raise KeyError("weights")'}
    assert "ranks 0, 1, 3 waited for rank 2" in str(error)


def test_exceptions_on_two_ranks_at_once_are_both_named():
    def worker(rank, world_size):
        if rank in (1, 3):
            raise ValueError(f"rank {rank} is wrong")
        dist.barrier()

    error = failing_launch(worker)
    assert [(f.rank, f.reason) for f in error.failures] == [
        (1, "ValueError: rank 1 is wrong"),
        (3, "ValueError: rank 3 is wrong"),
    ]
    assert error.__cause__ is None


def test_sys_exit_is_a_failure():
    def worker(rank, world_size):
        if rank == 1:
            sys.exit(3)
        dist.barrier()

    error = failing_launch(worker)
    assert [(f.rank, f.kind) for f in error.failures] == [(1, "exit")]
    assert "sys.exit(3)" in error.reason
    assert lines_of(error) == {1: "sys.exit(3)"}


def test_os_exit_names_the_rank_the_code_and_the_line():
    def worker(rank, world_size):
        if rank == 1:
            os._exit(7)
        dist.barrier()

    error = failing_launch(worker)
    assert [(f.rank, f.kind) for f in error.failures] == [(1, "os_exit")]
    assert "exit code 7" in error.reason
    assert lines_of(error) == {1: "os._exit(7)"}


def test_a_segmentation_fault_names_the_rank_and_the_line():
    def worker(rank, world_size):
        if rank == 1:
            ctypes.string_at(0)
        dist.barrier()

    error = failing_launch(worker)
    assert [(f.rank, f.kind) for f in error.failures] == [(1, "signal")]
    assert "SIGSEGV" in error.reason
    assert lines_of(error) == {1: "ctypes.string_at(0)"}


def test_an_abort_of_gloo_is_a_consequence_also_if_it_comes_before_the_death_that_caused_it(tmp_path):
    """In that order: rank 1 dies only when the pipe that rank 0 holds open is closed, by rank 0's end."""
    pipe = tmp_path / "rank 0 lives"
    os.mkfifo(pipe)

    def worker(rank, world_size, pipe):
        if rank == 0:
            os.open(pipe, os.O_WRONLY)
            os.write(2, GLOOS_LAST_WORDS)
            ctypes.CDLL(None).abort()
        if rank == 1:
            with open(pipe, "rb") as alive:
                alive.read()
            ctypes.string_at(0)
        dist.barrier()

    error = failing_launch(worker, 3, args=(str(pipe),))
    assert [(f.rank, f.kind) for f in error.failures] == [(1, "signal")]
    assert "SIGSEGV" in error.reason


def test_an_abort_of_the_students_own_is_no_consequence():
    def worker(rank, world_size):
        if rank == 0:
            os.abort()
        dist.barrier()

    assert [(f.rank, f.kind) for f in failing_launch(worker).failures] == [(0, "signal")]


@pytest.mark.parametrize("allocate", [lambda: bytearray(2**62), lambda: torch.empty(2**60)])
def test_an_allocation_that_is_refused_is_out_of_memory(allocate):
    def worker(rank, world_size):
        if rank == 1:
            allocate()
        dist.barrier()

    error = failing_launch(worker)
    assert [(f.rank, f.kind) for f in error.failures] == [(1, "out_of_memory")]


MEMORY = Path("/sys/fs/cgroup/memory")  # version 1, as root: where a test may make a small one


@pytest.mark.skipif(not os.access(MEMORY / "tasks", os.W_OK), reason="makes a control group of memory: needs root")
def test_a_rank_that_the_system_ends_for_want_of_memory_is_named(tmp_path):
    """Really: its process is moved into a control group of 64 MB and touches more."""
    group = MEMORY / f"hw_utils-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 * 2**20))

        def worker(rank, world_size):
            if rank == 1:
                (group / "tasks").write_text(str(os.getpid()))
                torch.ones(2**26)
            dist.barrier()

        error = failing_launch(worker)
    finally:
        group.rmdir()
    assert [(f.rank, f.kind) for f in error.failures] == [(1, "out_of_memory")]


def test_a_rank_killed_as_the_out_of_memory_killer_does_is_named():
    def worker(rank, world_size):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    error = failing_launch(worker)
    assert [(f.rank, f.kind) for f in error.failures] == [(1, "signal")]
    assert "SIGKILL" in error.reason
    assert lines_of(error) == {1: "os.kill(os.getpid(), signal.SIGKILL)"}


def test_a_rank_killed_from_outside_is_named_with_the_line_of_its_last_call():
    def worker(rank, world_size):
        if rank == 1:
            dist.barrier()
            subprocess.run(["kill", "-KILL", str(os.getpid())])
        dist.barrier()
        dist.barrier()

    error = failing_launch(worker)
    assert [(f.rank, f.kind) for f in error.failures] == [(1, "signal")]
    assert lines_of(error) == {1: "dist.barrier()"}


def test_an_endless_loop_is_a_timeout_that_names_the_busy_rank_and_its_line():
    def worker(rank, world_size):
        while rank == 1:
            rank = 1
        dist.barrier()

    error = failing_launch(worker, kind=TimedOut, timeout_s=3)
    assert [f.rank for f in error.failures] == [1]
    assert lines_of(error)[1] in ("while rank == 1:", "rank = 1")
    assert "ranks 0, 2, 3 waited for rank 1" in str(error)


@pytest.mark.parametrize("worker", [lambda rank: None, lambda rank, world_size: threading.Lock()])
def test_a_failure_before_or_after_the_workers_lines_names_its_first_line(worker):
    error = failing_launch(worker, 2)
    assert {f.where.line for f in error.failures} == {worker.__code__.co_firstlineno}


def test_an_argument_that_cannot_be_pickled_is_named():
    with pytest.raises(Unpicklable, match=r"args\[1\]\['lock'\] is a _thread.lock"):
        launch(lambda rank, world_size, a, b: None, 2, (1, {"lock": threading.Lock()}))


def test_a_variable_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def worker(rank, world_size):
        return lock

    with pytest.raises(Unpicklable, match=r"the variable lock of worker is a _thread.lock"):
        launch(worker, 2)


def test_a_result_that_cannot_be_pickled_is_named():
    def worker(rank, world_size):
        return {"model": [1, threading.Lock()]} if rank == 1 else None

    error = failing_launch(worker, 2)
    assert [(f.rank, f.kind) for f in error.failures] == [(1, "unpicklable")]
    assert "returned['model'][1] is a _thread.lock" in error.reason


class Stuck(Exception):
    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


class Twisted(Exception):
    def __init__(self, a, b):
        super().__init__(a)


def test_an_exception_that_cannot_be_pickled_is_still_reported():
    def worker(rank, world_size):
        raise Stuck("boo")

    error = failing_launch(worker, 1)
    assert "Stuck: boo" in error.reason
    assert "Stuck.lock is a _thread.lock" in error.reason
    assert error.__cause__ is None


def test_an_exception_that_cannot_be_rebuilt_is_still_reported():
    def worker(rank, world_size):
        raise Twisted("boo", 2)

    error = failing_launch(worker, 1)
    assert "Twisted: boo" in error.reason
    assert "could not be rebuilt" in error.reason


def test_grandchildren_die_with_their_rank_even_in_a_session_of_their_own():
    def worker(rank, world_size):
        for own_session in (False, True):
            subprocess.Popen(["sleep", "1000"], start_new_session=own_session)
        raise ValueError("enough")

    failing_launch(worker, 2)


def test_a_rank_that_only_lost_a_peer_is_not_blamed():
    def worker(rank, world_size):
        dist.barrier()
        if rank == 0:
            os._exit(1)
        dist.all_reduce(torch.ones(1))

    error = failing_launch(worker)
    assert [f.rank for f in error.failures] == [0], str(error)


def test_a_rank_that_catches_the_loss_of_a_peer_does_not_hide_who_died():
    def worker(rank, world_size):
        if rank == 0:
            os._exit(1)
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            return "caught"

    error = failing_launch(worker, 3)
    assert [f.rank for f in error.failures] == [0], str(error)


def test_run_isolated_gives_the_result_and_the_output():
    done = run_isolated(lambda a, b: (print("sum of", a, b), a + b)[1], (2, 3))
    assert (done.result, done.failure, done.output) == (5, None, "sum of 2 3\n")
    require_no_process_left()


def test_run_isolated_reports_a_crash_a_timeout_and_an_exception():
    crash = run_isolated(lambda: ctypes.string_at(0)).failure
    assert crash.kind == "signal"
    assert "SIGSEGV" in crash.reason
    late = run_isolated(lambda: time.sleep(60), timeout_s=0.2).failure
    assert late.kind == "timeout"
    error = run_isolated(lambda: 1 / 0).failure
    assert isinstance(error.exception, ZeroDivisionError)
    require_no_process_left()


def test_run_isolated_bounds_memory():
    done = run_isolated(lambda: torch.ones(10**9), memory_bytes=500 * 10**6)
    assert done.failure is not None
    assert done.failure.kind in ("exception", "out_of_memory")
