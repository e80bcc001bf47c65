"""`launch`: a function from a notebook cell on real processes; and `run_isolated`, one call in one fresh process.

    def worker(rank, world_size):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        return tensor.item()

    launch(worker, 4).results        # [6.0, 6.0, 6.0, 6.0]

    done = run_isolated(simulation, (worker, 1000), timeout_s=60, memory_bytes=4 * 2**30)
    done.result, done.failure, done.output, done.seconds

`run_isolated` never raises for what went wrong inside: `failure` says it (exception, exit, signal, timeout, ...), None
if the call returned. Its `on_output(text)` gets whole lines as they are printed.
"""

from __future__ import annotations

import atexit
import operator
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hw_utils.core import pickling, versions
from hw_utils.core.errors import Deadlock, Failure, TimedOut, WorkerFailed, ranks_text, without_our_stack
from hw_utils.core.run_result import Run
from hw_utils.gloo import merged_trace
from hw_utils.processes import start_by_fork
from hw_utils.processes.worker_processes import Member, WorkerProcesses, wait_until
from hw_utils.scripts.script import script_or_function

SPARE_RANKS = 16  # no larger workers stands by
START_S = 120.0  # for processes to start, over and above timeout_s: a cold import of torch on a busy machine
LOST_S = 10.0  # for the death that made a rank lose its peer to be known here: on a busy machine it comes later
SETTLE_S = 0.2  # after a first failure, for others that fail too


def launch(
    worker: Callable[..., Any] | str | os.PathLike,
    world_size: int,
    args: Sequence[Any] = (),
    *,
    timeout_s: float = 60,
    echo: bool = True,
    memory: bool = False,
    capacity_bytes: int | None = None,
) -> Run:
    """Runs `worker(rank, world_size, *args)` on `world_size` fresh processes connected by gloo.

    The default process group is ready in each. They see no GPU and have one torch thread each; seeds are those of a
    fresh process, for torch the same number on every rank. echo: whether what they print is shown as they print it.
    `worker` may be the path of a script for torchrun; it is run as it is, and `args` is its command line.
    memory: whether the run keeps the bytes that each rank holds, `run.memory`; an operation then takes some 15 us more.
    capacity_bytes: what a rank may hold before it gets an `OutOfMemory`; a run with it keeps memory.

    Raises:
        WorkerFailed: a rank did not return; names every one that failed, why, and the student's line.
        Deadlock: every rank that was left waited for another one, or for a lock of its own.
        TimedOut: a rank was still busy after `timeout_s`.
        ValueError, TypeError: `world_size` is not a whole number of at least 1; the worker is no function, or it or
            an argument cannot be sent to another process.
        KeyboardInterrupt: says where the ranks were.
    """
    with without_our_stack():
        check_world_size(world_size)
        check_capacity(capacity_bytes)
        worker, args = script_or_function(worker, args)
        if not callable(worker):
            raise TypeError(
                f"worker must be a function of (rank, world_size, *args) or a script's path, got {worker!r}"
            )
        call = pickling.dump_call(worker, args)
        versions.say_untried_once()
        workers = _spares.take(world_size)
        try:
            workers.echo.enabled = echo
            options = {"memory": memory or capacity_bytes is not None, "capacity_bytes": capacity_bytes}
            workers.call(worker, args, call, **options)
            _watch(workers, timeout_s)
            return _run_of(workers, **options)
        except KeyboardInterrupt:
            failures, note = _busy(workers, "still busy")
            raise KeyboardInterrupt(WorkerFailed(failures, headline="launch was interrupted", note=note)) from None
        finally:
            workers.close()
            _spares.prepare(world_size)


def check_world_size(world_size: int) -> None:
    """Raises ValueError or TypeError unless it is a whole number of at least 1."""
    try:
        if isinstance(world_size, bool):
            raise TypeError
        operator.index(world_size)
    except TypeError:
        raise TypeError(
            f"world_size must be a whole number of at least 1, got {world_size!r} ({type(world_size).__name__})"
        ) from None
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")


def check_capacity(capacity_bytes: int | None) -> None:
    """Raises ValueError unless it is None or a positive whole number of bytes."""
    is_number = isinstance(capacity_bytes, int) and not isinstance(capacity_bytes, bool)
    if capacity_bytes is not None and not (is_number and capacity_bytes > 0):
        raise ValueError(f"capacity_bytes must be a positive whole number or None, got {capacity_bytes!r}")


def books_of(parts: list[dict], world_size: int, capacity_bytes: int | None, fold=None):
    """The `Memory` of a run, from what its ranks have kept."""
    from hw_utils.core.memory.accounting import Memory

    return Memory.of(parts, world_size, capacity_bytes, fold)


def _watch(workers: WorkerProcesses, timeout_s: float) -> None:
    """Until every rank has returned; raises what went wrong."""
    members = workers.members

    def ended() -> bool:
        return all(m.returned for m in members) or any(m.failure or _died(m) for m in members)

    if not wait_until(workers, lambda: all(m.started for m in members) or ended(), time.perf_counter() + START_S):
        late = [m for m in members if not m.started]
        raise WorkerFailed([Failure(m.rank, "kit", f"its process did not start in {START_S:.0f} s") for m in late])
    in_time = wait_until(workers, lambda: ended() or workers.deadlock(), time.perf_counter() + timeout_s)
    if all(m.returned for m in members):
        workers.drain()
    elif not in_time:
        _raise(_time_out(workers, timeout_s), workers)
    elif workers.table is not None:
        _raise(Deadlock(workers.table), workers)
    else:
        _raise_failures(workers)


def _raise_failures(workers: WorkerProcesses) -> None:
    """Raises WorkerFailed, a moment after the first failure: others may fail too."""
    wait_until(workers, lambda: not workers.is_moving(), time.perf_counter() + SETTLE_S)
    wait_until(workers, lambda: _has_a_cause(workers), time.perf_counter() + LOST_S)
    failures = failures_of(workers)
    _raise(WorkerFailed(failures, note=_who_waited(workers.blocked(), failures)), workers)


def _has_a_cause(workers: WorkerProcesses) -> bool:
    """Whether a rank failed by itself, or none is left that could: losing a peer is a consequence."""
    return all(m.is_over for m in workers.members) or any(f.kind != "wire" for f in failures_of(workers))


def _died(member: Member) -> bool:
    return member.status is not None and not member.returned


def failures_of(workers: WorkerProcesses) -> list[Failure]:
    """Every rank that failed by itself; those that only lost a peer are left out when there are others."""
    failures = [m.failure or workers.crash_of(m) for m in workers.members if m.failure or _died(m)]
    own = [f for f in failures if f.kind != "wire"]
    return own or failures


def _raise(error: WorkerFailed, workers: WorkerProcesses) -> None:
    workers.drain()
    causes = [f.exception for f in error.failures if f.exception is not None]
    raise error from (causes[0] if len(causes) == 1 else None)


def _time_out(workers: WorkerProcesses, timeout_s: float) -> TimedOut:
    failures, note = _busy(workers, f"still busy after {timeout_s:g} s")
    return TimedOut(failures, headline=f"not done after {timeout_s:g} s", note=note)


def _busy(workers: WorkerProcesses, reason: str) -> tuple[list[Failure], str]:
    """The busy ranks with the line that each is at, as failures; those that wait for them, as a note."""
    waiting = workers.blocked()
    left = [m for m in workers.members if not m.is_over]
    busy = [m for m in left if m.rank not in waiting] or left or workers.members
    workers.ask(busy)
    failures = [Failure(m.rank, "timeout", reason, workers.stack_of(m)) for m in busy]
    return failures, _who_waited(waiting, failures)


def _who_waited(waiting: list[int], failures: list[Failure]) -> str:
    failed = {f.rank for f in failures}
    waiting = [r for r in waiting if r not in failed]
    return f"{ranks_text(waiting)} waited for {ranks_text(failed)}" if waiting else ""


def _run_of(workers: WorkerProcesses, memory: bool, capacity_bytes: int | None) -> Run:
    members = workers.members
    start = min(m.meta["start"] for m in members)
    seconds = max(m.meta["end"] for m in members) - start
    trace = merged_trace.merge([m.meta["ledger"] for m in members], start, len(members))
    books = None
    if memory:
        parts = [part for m in members for part in m.meta["memory"]]
        for part in parts:
            part["records"]["time_s"] = np.maximum(part["records"]["time_s"] - start, 0.0)  # arguments come before it
        books = books_of(parts, len(members), capacity_bytes)
    return Run([m.result for m in members], seconds, [m.stdout.text for m in members], trace, kept_memory=books)


@dataclass(frozen=True)
class Isolated:
    """What came of one call in one fresh process."""

    result: Any
    failure: Failure | None
    output: str
    errors: str  # what it wrote to stderr
    seconds: float


def run_isolated(
    function: Callable[..., Any],
    args: tuple = (),
    *,
    timeout_s: float = 60,
    memory_bytes: int | None = None,
    on_output: Callable[[str], None] | None = None,
) -> Isolated:
    """Calls `function(*args)` in one fresh process; nothing that it does takes the kernel down.

    memory_bytes: how much it may allocate (Linux). on_output: is given whole lines as they are printed. An interrupt
    leaves as a KeyboardInterrupt whose argument is a Failure with the line that it was at.
    """
    call = pickling.dump_call(function, tuple(args))
    workers = WorkerProcesses(1, connect=False)
    try:
        member = workers.members[0]
        workers.echo = _Lines(on_output)
        workers.call(function, args, call, memory_bytes=memory_bytes)
        failure = None
        started = time.perf_counter()
        try:
            _watch(workers, timeout_s)
        except WorkerFailed as error:
            failure = error.failures[0]
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_busy(workers, "still busy")[0][0]) from None
        seconds = time.perf_counter() - started
        return Isolated(member.result, failure, member.stdout.text, member.stderr.text, seconds)
    finally:
        workers.close()


class _Lines:
    """Hands lines on without a prefix."""

    enabled = True

    def __init__(self, on_output: Callable[[str], None] | None) -> None:
        self.on_output = on_output

    def show(self, rank: int, lines: list[str]) -> None:
        if lines and self.on_output is not None:
            self.on_output("".join(line + "\n" for line in lines))


class _Spares:
    """Workers that stand by, forked and connected while the student reads; used once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: WorkerProcesses | None = None

    def take(self, world_size: int) -> WorkerProcesses:
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None and workers.owner == os.getpid():
            if workers.world_size == world_size and workers.is_fresh:
                return workers
            workers.close()
        return WorkerProcesses(world_size)

    def prepare(self, world_size: int) -> None:
        """Starts the next workers; one of many ranks would take much memory (about 15 MB each) while nobody uses it."""
        if not start_by_fork.available():
            return  # the pool of interpreters fills itself
        workers = WorkerProcesses(world_size) if world_size <= SPARE_RANKS else None
        with self._lock:
            workers, self._workers = self._workers, workers
        if workers is not None:
            workers.close()

    def pids(self) -> set[int]:
        """The processes of the workers that stand by."""
        with self._lock:
            if self._workers is None:
                return set()
            wait_until(self._workers, lambda: all(m.pid for m in self._workers.members), time.perf_counter() + START_S)
            return {m.pid for m in self._workers.members}

    def drop(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None and workers.owner == os.getpid():
            workers.close()


_spares = _Spares()
atexit.register(_spares.drop)
