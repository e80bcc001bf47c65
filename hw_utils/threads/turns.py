"""Threads that take turns: N ranks as real threads, of which exactly one runs at a time.

Who runs next is a function's choice, so a run can be repeated to the last step. `interleavings` explores with it what
unlucky orders do to a lock-free buffer; `rendezvous` runs a check's ranks on it.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hw_utils.core.source.students_files import students_line

_new_lock = _thread.allocate_lock  # kept: `interleave` replaces the names in `threading`
_libc = ctypes.CDLL(None)
_here = threading.local()  # .place: the turns and the rank of this thread


class Stopped(BaseException):
    """Raised in a rank that must end because the run is over; no `except Exception` catches it."""


@dataclass
class Turn:
    """What one rank did, or where it stood when the run ended."""

    rank: int
    result: Any = None
    error: BaseException | None = None
    done: bool = False
    ready: Callable[[], bool] | None = None  # None: can go on
    waits_in: Any = None  # what it is parked in, for a report
    timed_out: bool = False  # its wait had a limit, and nobody else could run
    has_limit: bool = False


class Turns:
    """`world_size` threads that run one at a time.

        with Turns(3) as turns:
            ended = turns.run([work] * 3, choose=lambda runnable, me: runnable[0])

    In `work(rank)`, `turns.pause()` offers the turn to another rank, and `turns.park(ready)` gives it away until
    `ready()` is true. `choose(runnable, rank)` gets the ranks that can run and the one that gives its turn away
    (-1 at the start).
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.ranks: list[Turn] = []
        self.stopping = False
        self.stuck = False  # nobody could run
        self.skipped_s = 0.0  # by waits with a limit
        self._limited: set[int] = set()  # ranks that had one
        self.timed_out = False
        self.busy_at = ("", 0)  # file and line of the student's code at which the time limit met a rank
        self.current = -1
        self.caller = -1  # the thread that has made what the ranks share
        self._work: Sequence[Callable[[int], Any]] | None = None
        self._finished = _new_lock()
        self._finished.acquire()
        self._rank_of: dict[int, int] = {}
        self._batons = [_new_lock() for _ in range(world_size)]
        for baton in self._batons:
            baton.acquire()
        self._threads = [
            threading.Thread(target=self._serve, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(world_size)
        ]

    def __enter__(self) -> Turns:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._work = None
        lost = self.left_running
        for rank, thread in enumerate(self._threads):
            if rank not in lost:
                self._wake(rank)
                thread.join()

    def gather(self) -> None:
        """Moves the threads to the processor that the caller runs on: there the turn passes in half of the time.

        The caller may go on to another one, as an idle one takes it; so call it again from time to time.
        """
        if hasattr(_libc, "sched_getcpu") and (processor := _libc.sched_getcpu()) >= 0:
            for thread in self._threads:
                with contextlib.suppress(OSError):  # it has ended, or may not: then the threads stay apart
                    os.sched_setaffinity(thread.native_id, {processor})

    def _wake(self, rank: int) -> None:
        if self._batons[rank].locked():
            self._batons[rank].release()

    def rank(self) -> int:
        """The rank of the calling thread, or -1."""
        return self._rank_of.get(_thread.get_ident(), -1)

    def _serve(self, rank: int) -> None:
        self._rank_of[_thread.get_ident()] = rank
        _here.place = self, rank
        with contextlib.suppress(Stopped):  # one that came late, when the rank had ended by itself
            while True:
                self._batons[rank].acquire()
                if self._work is None:
                    return
                self._serve_one(rank)

    def _serve_one(self, rank: int) -> None:
        mine = self.ranks[rank]
        try:
            if not self.stopping:
                mine.result = self._work[rank](rank)
        except BaseException as error:
            mine.error = error
        mine.done = True
        if self.stopping:
            self._finished.release()
        else:
            self._pass_on(rank)

    def run(
        self,
        work: Sequence[Callable[[int], Any]],
        choose: Callable[[list[int], int], int],
        timeout_s: float = 10.0,
    ) -> list[Turn]:
        """Runs `work[rank](rank)` on every rank; how each ended, in rank order. Does not raise what a rank raised.

        After a run that had to be stopped at its time limit, the threads are not used again: make new `Turns`.
        """
        if self.timed_out:
            raise RuntimeError("a run on these threads was stopped at its time limit; make new Turns")
        self._work, self._choose = work, choose
        self.ranks = [Turn(rank) for rank in range(self.world_size)]
        self.stopping = self.stuck = False
        self._limited.clear()
        self._pass_on(-1)
        try:
            if not self._ends_within(timeout_s):
                self.timed_out = True
                frame = sys._current_frames().get(self._threads[self.current].ident or 0)
                self.busy_at = students_line(frame)
        finally:
            if self.timed_out or not all(r.done for r in self.ranks):
                self._stop()
        return self.ranks

    def _ends_within(self, limit_s: float) -> bool:
        """Whether the run ends in time; a busy machine gets more of it, for a loop uses CPU time too."""
        start_s = time.process_time()
        return any(
            self._finished.acquire(timeout=limit_s)
            for _ in itertools.takewhile(lambda k: not k or time.process_time() - start_s < limit_s / 2, range(5))
        )

    def _runnable(self) -> list[int]:
        return [r.rank for r in self.ranks if not r.done and (r.ready is None or r.ready())]

    def _pass_on(self, rank: int) -> bool:
        """Gives the turn to the next rank; True if that is `rank` itself."""
        runnable = self._runnable()
        if not runnable:
            runnable = [r.rank for r in self.ranks if not r.done and r.has_limit][:1]
            for r in runnable:
                self.ranks[r].timed_out = True
        if not runnable:
            self.stuck = not all(r.done for r in self.ranks)
            self.current = -1
            self._finished.release()
            return False
        self.current = self._choose(runnable, rank)
        if self.current == rank:
            return True
        self._wake(self.current)
        return False

    def is_first_limit(self) -> bool:
        """Whether the rank that asks has not asked before in this run."""
        is_first = self.rank() not in self._limited
        self._limited.add(self.rank())
        return is_first

    def pause(self) -> None:
        """Lets `choose` give the turn to another rank; returns when it is this rank's turn again."""
        self._give(self.current)

    def _give(self, rank: int) -> None:
        if not self.stopping and not self._pass_on(rank):
            self._batons[rank].acquire()
        if self.stopping:
            raise Stopped

    def park(self, ready: Callable[[], bool], waits_in: Any = None, *, has_limit: bool = False) -> bool:
        """Waits until `ready()`; False if `has_limit` and no rank could run before that."""
        mine = self.ranks[self.current]
        mine.ready, mine.waits_in, mine.has_limit, mine.timed_out = ready, waits_in, has_limit, False
        self._give(mine.rank)
        mine.ready, mine.waits_in, mine.has_limit = None, None, False
        return not mine.timed_out

    def _stop(self) -> None:
        """Ends every rank that is left, one after the other: parked ones at once, a looping one at its next step."""
        self.stopping = True
        running = self.current
        for mine in sorted(self.ranks, key=lambda r: r.rank != running):
            if mine.done:
                continue
            if mine.rank != running:
                self._wake(mine.rank)
            self._await_end(mine)

    def _await_end(self, mine: Turn, limit_s: float = 2.0) -> None:
        until_s = time.monotonic() + limit_s
        thread = self._threads[mine.rank]
        while time.monotonic() < until_s and not self._finished.acquire(timeout=0.005):
            raise_in(thread, Stopped)

    @property
    def left_running(self) -> list[int]:
        """Ranks that could not be stopped: they catch every exception, or sit in a call that never returns."""
        return [r.rank for r in self.ranks if not r.done]


def place() -> tuple[Turns, int] | None:
    """Whose rank the calling thread is, if it is one that takes turns."""
    return getattr(_here, "place", None)


def raise_in(thread: threading.Thread, exception: type[BaseException]) -> None:
    """Raises `exception` in another thread, at its next line of Python."""
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(exception))
