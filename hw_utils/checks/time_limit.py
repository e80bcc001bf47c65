"""Ends an answer that a check calls in its own process, where no run has a time limit for it."""

from __future__ import annotations

import signal
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager

from hw_utils.core.errors import CheckFailed
from hw_utils.core.source import is_students, locate

LIMIT_S = 30.0  # the quickest right answers take milliseconds, the slowest one known a second
AGAIN_S = 1.0  # an answer may catch the first one


@contextmanager
def time_limit(what: str, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Raises CheckFailed, with the answer's line, where the block takes longer than limit_s.

    There is no limit on a system without timers, and beside the main thread, which alone can be interrupted.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_, frame: types.FrameType | None) -> None:
        raise CheckFailed(
            f"{what} is still busy after {limit_s:g} s{_line(frame)}.",
            cause="a loop whose end never comes: print what its condition looks at.",
        )

    before = signal.signal(signal.SIGALRM, ring)
    rest_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, rest_s)
        signal.signal(signal.SIGALRM, before)


def _line(frame: types.FrameType | None) -> str:
    """`, in a cell, line 3: while True:`, of the student's innermost line; empty if there is none."""
    while frame is not None and not is_students(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    where = locate(frame.f_code.co_filename, frame.f_lineno)
    return f", {where}: {where.source}"
