"""How a run ends: at its end, with ranks that fail, at its time limit, or given up for another carrier of ranks."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from contextlib import contextmanager
from typing import NamedTuple

from hw_utils.core import pickling
from hw_utils.core.errors import Failure, Frame
from hw_utils.core.failure_reasons import causes_of, kind_and_reason
from hw_utils.core.source.lines import locate, with_places
from hw_utils.core.source.students_files import is_students
from hw_utils.virtual.ranks.turns import Stop

_AGAIN_S = 1.0
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class GivenUp(NamedTuple):
    """Why this attempt at a run does not go on: it needs "threads" or "processes" for its ranks, or "seeds"."""

    wants: str
    why: str
    rank: int  # that asked for it


class Ending:
    """What is known so far of a run's end. may_go_apart: whether it may be started again with a process a rank."""

    def __init__(self, engine, *, may_go_apart: bool = False) -> None:
        self.engine, self.may_go_apart = engine, may_go_apart
        self.failures: list[Failure] = []
        self.given_up: GivenUp | None = None
        self.is_under_way = self.is_over = False
        self.ended_in = "failed"

    def need(self, what: str, why: str) -> None:
        """Gives this run up; the caller starts it again with "threads" or "processes" for ranks, or "seeds" of theirs.

        Another attempt here would find what this one has left in modules (a singleton that is there already):
        processes do not.
        """
        engine = self.engine
        if not engine.threads.carries():
            return
        left = engine.turns.changed() if what != "processes" else ""
        what, why = ("processes", left) if left else (what, why)
        self.given_up, self.is_over, self.is_under_way = GivenUp(what, why, engine.rank), True, False
        raise Stop

    def fail(self, failures: list[Failure]) -> None:
        """Ends the run at once, whatever the other ranks do."""
        self.failures.extend(failures)
        self.is_over, self.is_under_way = True, False
        raise Stop


def failure_of(rank: int, error: BaseException) -> Failure:
    kind, reason = kind_and_reason(error)
    frames = tuple(
        Frame(locate(f.filename, f.lineno or 0), f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if is_students(f.filename)
    )
    return Failure(rank, kind, reason, frames, error, causes=tuple(map(with_places, causes_of(error))))


def is_from_a_package(error: BaseException) -> bool:
    """Whether code of an installed package has raised it: neither the program's own, nor this package's."""
    found = traceback.extract_tb(error.__traceback__)
    return bool(found) and not is_students(found[-1].filename) and not found[-1].filename.startswith(_PACKAGE)


def misses_of_thread(error: BaseException | None) -> bool:
    """Whether it comes of something that a `threading.local` has in another thread, and not in this one."""
    while error is not None:
        if isinstance(error, AttributeError) and isinstance(error.obj, threading.local):
            return True
        error = error.__cause__ or error.__context__
    return False


def sendable(error: BaseException | None) -> bytes | None:
    """The exception as bytes that can be rebuilt, if it has such."""
    if error is None:
        return None
    try:
        return pickling.dump_error(error, "")
    except Exception:
        return None


@contextmanager
def time_limit(timeout_s: float | None):
    """Ends the last attempt in the list that it gives, with the line that its rank is at, after `timeout_s`.

    Between two attempts nobody is there to end: it rings again.
    """
    attempts: list = []
    if timeout_s is None or not hasattr(signal, "setitimer"):
        yield attempts
        return

    def ring(_, frame) -> None:
        if not attempts or not attempts[-1].engine.ending.is_under_way:
            return
        engine = attempts[-1].engine
        busy = engine.rank if engine.rank < engine.world_size else 0
        frames = attempts[-1].frames_of(busy, frame)
        engine.ending.ended_in = "timeout"
        engine.ending.fail([Failure(busy, "timeout", f"still busy after {timeout_s:g} s", frames)])

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s, _AGAIN_S)
    try:
        yield attempts
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
