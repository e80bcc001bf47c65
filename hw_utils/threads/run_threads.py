"""N threads that stand for N devices: `run_threads(worker, world_size)`, in the shape of `launch`.

The threads are real and share the notebook's memory. One that raises ends the others, wherever they wait;
threads that wait for each other are found, told and ended. Nothing is left running.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from hw_utils.core.errors import Deadlock, Failure, Frame, TimedOut, WaitTable, WorkerFailed, ranks_text
from hw_utils.core.run_result import Run
from hw_utils.core.source.lines import locate
from hw_utils.core.source.students_files import is_students
from hw_utils.core.trace import Trace
from hw_utils.threads.deadlock import LOOK_S, BlockedThreads, rows_of, sentence_of
from hw_utils.threads.rank_thread import Bell, RankThread, StoppedForGood, sleep_that_ends, split_output
from hw_utils.threads.thread_frames import Stand, is_held, stand_of
from hw_utils.threads.turns import Stopped

_STOP_S = 2.0  # to end threads that catch what is thrown at them
_POLITE_S = 0.3  # after which their own handlers are ended too
_MAX_THREADS = 256


def run_threads(
    worker: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    *,
    timeout_s: float = 60.0,
    echo: bool = True,
) -> Run:
    """The `Run` of `worker(rank, world_size, *args)` on `world_size` threads; results in rank order.

    The trace has the calls to what `watch` wraps.

    Raises:
        WorkerFailed: some rank raised; it is named with its line, and the others were ended.
        Deadlock: every rank that was left waited for another one; with the wait-for table.
        TimedOut: some rank was still busy after `timeout_s`.
        ValueError: world_size below 1 or above 256.

    >>> run_threads(lambda rank, world_size: rank * rank, 4).results
    [0, 1, 4, 9]
    """
    if not 1 <= world_size <= _MAX_THREADS:
        raise ValueError(f"world_size must be 1 to {_MAX_THREADS}, got {world_size}")
    thread_run = _ThreadRun(worker, world_size, tuple(args), timeout_s)
    with split_output(thread_run, echo), sleep_that_ends():
        thread_run.run()
    trace = Trace.of([e for rank in thread_run.ranks for e in rank.events], world_size)
    return Run(
        [rank.result for rank in thread_run.ranks], thread_run.seconds, [rank.text for rank in thread_run.ranks], trace
    )


class _ThreadRun:
    """The threads of one run, and the thread that watches them."""

    def __init__(self, worker: Callable[..., Any], world_size: int, args: tuple, timeout_s: float) -> None:
        self.worker, self.world_size, self.args, self.timeout_s = worker, world_size, args, timeout_s
        self.news = Bell()
        self.ranks = [RankThread(self, rank) for rank in range(world_size)]
        self.broken: list[threading.Barrier] = []
        self.raised: list[RankThread] = []
        self.blocked = BlockedThreads()
        self.seconds = 0.0

    def run(self) -> None:
        self.start_s = time.perf_counter()
        try:
            for rank in self.ranks:
                rank.start()
            trouble = self._watch()
            waits = self.stands() if trouble else {}  # before they are ended
        finally:
            left = self._stop()
            self.seconds = time.perf_counter() - self.start_s
        if trouble:
            raise trouble(waits, left)

    def alive(self) -> list[RankThread]:
        return [rank for rank in self.ranks if not rank.done]

    def stands(self) -> dict[int, Stand]:
        """Where every thread that still runs stands."""
        alive = self.alive()  # before the frames: a rank that ends in between counts as running
        frames = sys._current_frames()
        return {r.rank: stand_of(frames[r.ident]) if r.ident in frames else Stand("", 0) for r in alive}

    def _watch(self) -> Callable | None:
        """Waits for the end; what to raise if it is not a good one."""
        while True:
            self.news.wait(LOOK_S)
            if any(rank.error is not None for rank in self.ranks):
                return self._failed
            if not self.alive():
                return None
            if self.blocked.are_still(self.stands(), time.perf_counter() - self.start_s):
                return self._deadlock
            if time.perf_counter() - self.start_s > self.timeout_s:
                return self._timed_out

    def _stop(self) -> list[int]:
        """Ends the threads that are left; the ranks that could not be ended."""
        if self.alive():
            self._break_barriers()
        self.raised = [rank for rank in self.ranks if rank.error is not None]  # later ones are consequences
        start_s = time.perf_counter()
        while self.alive() and (spent_s := time.perf_counter() - start_s) < _STOP_S:
            for rank in self.alive():
                rank.stop(Stopped if spent_s < _POLITE_S else StoppedForGood)
            self.news.wait(0.005)
        for rank in self.ranks:
            if rank.done and rank.ident is not None:
                rank.join()
        for barrier in self.broken:
            if not is_held(barrier._cond._lock):  # a thread that was ended right there may have kept it
                barrier.reset()
        return [rank.rank for rank in self.alive()]

    def _break_barriers(self) -> None:
        if not any(rank.error is not None for rank in self.ranks):
            return
        woken = {r: stand.thing for r, stand in self.stands().items() if isinstance(stand.thing, threading.Barrier)}
        self.broken = list(dict.fromkeys(woken.values()))
        for barrier in self.broken:
            barrier.abort()
        start_s = time.perf_counter()
        while time.perf_counter() - start_s < _STOP_S:
            if all(stand.blocked for rank, stand in self.stands().items() if rank in woken):
                break  # they have done what they do about it
            self.news.wait(0.005)

    def _failed(self, waits: dict[int, Stand], left: list[int]) -> WorkerFailed:
        told = threading.BrokenBarrierError if self.broken else ()
        guilty = [rank for rank in self.raised if not isinstance(rank.error, told)] or self.raised
        failure = WorkerFailed([_failure(r) for r in guilty], note=self._note(waits, guilty, left))
        failure.__cause__ = guilty[0].error
        return failure

    def _note(self, waits: dict[int, Stand], guilty: list[RankThread], left: list[int]) -> str:
        where: dict[str, list[int]] = {}
        for rank, stand in waits.items():
            if stand.blocked and rank not in [g.rank for g in guilty]:
                where.setdefault(f"{stand.call} at {_place(stand)}", []).append(rank)
        lines = [f"{ranks_text(ranks)} stood in {place}, and {_were(ranks)} ended" for place, ranks in where.items()]
        return "\n".join([*lines, *_left_running(left)])

    def _timed_out(self, waits: dict[int, Stand], left: list[int]) -> TimedOut:
        failures = []
        for rank, stand in waits.items():
            doing = f"waits in {stand.call}" if stand.blocked else "still busy"
            where = locate(stand.file, stand.line) if stand.line else None
            frames = (Frame(where),) if where else ()
            failures.append((stand.blocked, Failure(rank, "timeout", f"{doing} after {self.timeout_s:g} s", frames)))
        failures.sort(key=lambda pair: pair[0])
        if not failures:
            raise RuntimeError("the run timed out just as its last rank ended: run it again")
        return TimedOut([failure for _, failure in failures], note="\n".join(_left_running(left)))

    def _deadlock(self, waits: dict[int, Stand], left: list[int]) -> Deadlock:
        rows = rows_of(waits, self.world_size, self.blocked.since_s)
        return Deadlock(
            WaitTable(rows, sentence="; ".join([sentence_of(waits, self.world_size), *_left_running(left)]))
        )


def _place(stand: Stand) -> str:
    where = locate(stand.file, stand.line)
    return f"{where}: {where.source}" if where.source else str(where)


def _were(ranks: Sequence[int]) -> str:
    return "was" if len(ranks) == 1 else "were"


def _left_running(left: list[int]) -> list[str]:
    if not left:
        return []
    return [f"{ranks_text(left)} could not be ended, and runs on in this kernel: restart it when you are done"]


def _failure(rank: RankThread) -> Failure:
    error = rank.error
    frames = tuple(
        Frame(locate(f.filename, f.lineno or 0), f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if is_students(f.filename)
    )
    kind = "exit" if isinstance(error, SystemExit) else "exception"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(rank.rank, kind, text, frames, error)
