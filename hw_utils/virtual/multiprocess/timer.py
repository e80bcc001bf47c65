"""A program's own timer, of `signal.setitimer` or `signal.alarm`, while its rank stands still.

The system's timer goes on with real seconds. What a rank waits, or sleeps, it does on its virtual clock.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SOON_S = 1e-6  # the shortest time that the system's timer knows
_KIND = getattr(signal, "ITIMER_REAL", None)


def left_s() -> float:
    """Seconds until the calling thread's program is rung; 0 if no timer is set, or another thread hears it."""
    return signal.getitimer(_KIND)[0] if _hears() else 0.0


@contextmanager
def stands_still(clock_s: Callable[[], float]) -> Iterator[None]:
    """Meanwhile the timer takes what the clock takes, in seconds, and rings at the end if it is due by then."""
    due_s, every_s = signal.setitimer(_KIND, 0) if _hears() else (0.0, 0.0)
    began_s = clock_s()
    try:
        yield
    finally:
        if due_s:
            signal.setitimer(_KIND, max(due_s - (clock_s() - began_s), SOON_S), every_s)


def _hears() -> bool:
    return _KIND is not None and threading.current_thread() is threading.main_thread()
