"""Ends a call of an answer that computes and never comes back, at its line, as a check does in the notebook.

The driver waits for the answer's reply meanwhile; without this it would be ended with all that it knows of the case.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

from hw_grader.driving.forwarded_calls import SERVES
from hw_utils.threads.turns import raise_in

LIMIT_S = 15.0  # of a processor, between two questions to the driver; the quickest right answers take milliseconds
_LOOK_S = 1.0
# The machine's, in no global name of a module: there the functions of `time` become the driver's (see forwarded_calls).
_clock = SimpleNamespace(of_a_thread_s=time.clock_gettime, here_s=time.thread_time, sleep=time.sleep)


class StillBusy(TimeoutError):
    """Raised in an answer, and told as Python's own."""

    def __init__(self) -> None:
        super().__init__(f"still busy after {LIMIT_S:g} s")


StillBusy.__name__ = "TimeoutError"


class BusyCalls:
    """The threads that serve calls, with the processor time that each had when it last heard of the driver."""

    def __init__(self) -> None:
        self._since_s: dict[threading.Thread, float] = {}
        if hasattr(time, "pthread_getcpuclockid"):  # as on every Unix
            threading.Thread(target=self._look, daemon=True, name=SERVES).start()

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Within it the calling thread computes for an answer."""
        thread = threading.current_thread()
        self._since_s[thread] = _clock.here_s()
        try:
            yield
        finally:
            self._since_s.pop(thread, None)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Within it the calling thread waits for the driver."""
        thread = threading.current_thread()
        was = self._since_s.pop(thread, None)
        yield
        if was is not None:
            self._since_s[thread] = _clock.here_s()

    def _look(self) -> None:
        while True:
            _clock.sleep(_LOOK_S)
            for thread, since_s in list(self._since_s.items()):
                if _seconds_of(thread) - since_s >= LIMIT_S:
                    raise_in(thread, StillBusy)  # again with the next look: an answer may catch it


def _seconds_of(thread: threading.Thread) -> float:
    """Its processor time; 0 once it has ended."""
    with contextlib.suppress(OSError):
        return _clock.of_a_thread_s(time.pthread_getcpuclockid(thread.ident or 0)) if thread.is_alive() else 0.0
    return 0.0
