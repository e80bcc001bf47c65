"""One rank as a thread: its result, what it printed, and how it is ended."""

from __future__ import annotations

import _thread
import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hw_utils.core.printed_lines import Stream
from hw_utils.core.source.students_files import is_students
from hw_utils.core.trace import Event
from hw_utils.threads.thread_frames import free
from hw_utils.threads.turns import Stopped, raise_in


class Bell:
    """Wakes one waiting thread. Unlike an `Event` it is never left locked by a thread that is ended inside it."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._lock.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether it rang in time; hears each ring once."""
        return self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


class StoppedForGood(Stopped):
    """`Stopped` for a rank whose bare `except:` caught that: its next line raises too, also one in the handler."""

    def __init__(self) -> None:
        super().__init__()
        frame = sys._getframe()  # it is made in the thread that it ends
        while frame is not None:
            if is_students(frame.f_code.co_filename):
                frame.f_trace, frame.f_trace_lines = _end_at_line, True
            frame = frame.f_back
        sys.settrace(_end_at_line)


def _end_at_line(frame: Any, event: str, arg: Any) -> Any:
    if event == "line":
        raise StoppedForGood
    return None


class RankThread(threading.Thread):
    """One thread of a run."""

    def __init__(self, thread_run: Any, rank: int) -> None:
        super().__init__(name=f"rank {rank}", daemon=True)
        self.thread_run, self.rank = thread_run, rank
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.may_raise = threading.Lock()  # held: no exception is thrown in
        self.events: list[Event] = []
        self.stream = Stream()
        self.must_end = Bell()

    @property
    def text(self) -> str:
        return self.stream.text

    def run(self) -> None:
        try:
            try:
                self.result = self.thread_run.worker(self.rank, self.thread_run.world_size, *self.thread_run.args)
            except BaseException as error:
                self.error = error
            with self.may_raise:
                self.done = True
        except Stopped as late:  # it arrived when the worker had ended by itself
            self.error = self.error or late
            self.done = True
        self.thread_run.news.ring()

    def stop(self, exception: type[Stopped] = Stopped) -> None:
        """Raises `exception` where the thread stands, and wakes it."""
        if self.ident is None:
            self.done = True  # it was never started
            return
        self.must_end.ring()
        self._throw(exception)
        stand = self.thread_run.stands().get(self.rank)
        if stand is not None:
            free(stand)

    def _throw(self, exception: type[Stopped]) -> None:
        if self.may_raise.acquire(timeout=0.1):  # a thread that was ended right there may have kept it
            if not self.done:
                raise_in(self, exception)
            self.may_raise.release()


class _Split(io.TextIOBase):
    """Stands in for stdout: what a rank prints goes to its own stream, in whole lines to the notebook."""

    def __init__(self, shown: Any, thread_run: Any, echo: bool) -> None:
        self.shown, self.thread_run, self.echo = shown, thread_run, echo

    def write(self, text: str) -> int:
        rank = threading.current_thread()
        if not isinstance(rank, RankThread) or rank.thread_run is not self.thread_run:
            return self.shown.write(text)
        lines = rank.stream.feed(text.encode())
        if self.echo:
            self.shown.write("".join(f"[rank {rank.rank}] {line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        self.shown.flush()


@contextmanager
def split_output(thread_run: Any, echo: bool) -> Iterator[None]:
    shown = sys.stdout
    sys.stdout = _Split(shown, thread_run, echo)
    try:
        yield
    finally:
        sys.stdout = shown
        for rank in thread_run.ranks:
            rest = rank.stream.feed(b"", final=True)
            if rest and echo:
                shown.write("".join(f"[rank {rank.rank}] {line}\n" for line in rest))


@contextmanager
def sleep_that_ends() -> Iterator[None]:
    """Within it, a rank that sleeps can be woken: no exception reaches a thread inside the real `time.sleep`."""
    real = time.sleep

    def sleep(seconds: float) -> None:
        thread = threading.current_thread()
        if not isinstance(thread, RankThread):
            real(seconds)
        elif thread.must_end.wait(seconds):
            thread.must_end.ring()  # for the next sleep
            raise Stopped

    time.sleep = sleep
    try:
        yield
    finally:
        time.sleep = real
