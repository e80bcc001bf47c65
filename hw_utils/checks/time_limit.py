"""Ends an answer that a check calls in its own process, where no run has a time limit for it."""

from __future__ import annotations

import os
import signal
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager

from hw_utils.core.errors import CheckFailed
from hw_utils.core.source.lines import locate
from hw_utils.core.source.students_files import is_students

LIMIT_S = 30.0  # the quickest right answers take milliseconds, the slowest one known a second
LOOK_S = 1.0  # how often to look; an answer may catch the first end
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_RUNS = tuple(os.path.join(_PACKAGE, name) for name in ("simulate.py", "launch.py", os.path.join("threads", "")))
_CHECK = os.path.join(_PACKAGE, "checks", "check.py")


@contextmanager
def time_limit(what: str, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Raises CheckFailed, with the answer's line, where the block takes limit_s in a row outside of runs.

    `simulate`, `launch` and ranks in turns have limits of their own. A timer that was set before rings as it would
    have. There is no limit on a system without timers, and beside the main thread, which alone can be interrupted.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    begun_s = since_s = time.monotonic()

    def look(number: int, frame: types.FrameType | None) -> None:
        nonlocal since_s
        now_s = time.monotonic()
        if rest_s and now_s - begun_s > rest_s and callable(before):
            before(number, frame)
        line, is_in_run = _where(frame)
        if is_in_run:
            since_s = now_s
        elif line and now_s - since_s >= limit_s:
            raise CheckFailed(
                f"{what} is still busy after {limit_s:g} s{line}.",
                cause="a loop whose end never comes: print what its condition looks at.",
            )

    each_s = min(LOOK_S, limit_s)
    before = signal.signal(signal.SIGALRM, look)
    rest_s, _ = signal.setitimer(signal.ITIMER_REAL, each_s, each_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, rest_s)
        signal.signal(signal.SIGALRM, before)


def _where(frame: types.FrameType | None) -> tuple[str, bool]:
    """`, in a cell, line 3: while True:`, of the answer's innermost line or empty, and whether a run is under way."""
    line = ""
    while frame is not None and frame.f_code.co_filename != _CHECK:  # behind that is the cell that calls the check
        file = frame.f_code.co_filename
        if file.startswith(_RUNS):
            return line, True
        if not line and is_students(file):
            where = locate(file, frame.f_lineno)
            line = f", {where}: {where.source}"
        frame = frame.f_back
    return line, False
