"""gloo's work, which writes down when it was waited for and publishes what the rank waits for."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any

from hw_utils.board import BLOCKED, MAY_MOVE, RUNNING
from hw_utils.keeper import END, WAIT_END, WAIT_START

_threads = threading._active  # its length is the number of Python threads, at 40 ns


class LedgerWork(list):
    """What `isend`, `irecv` and asynchronous collectives return: [gloo's work, keeper, code of the wait, k, row].

    A list, because the ledger keeps it as it is: one object a call instead of two. It behaves as a work, not as a list.
    """

    __slots__ = ("__dict__",)

    def wait(self, *timeout) -> bool:
        inner, keeper, code, k, row = self
        if row[WAIT_END] >= 0.0:
            return inner.wait(*timeout)
        q, header = keeper.q, keeper.header
        start = perf_counter()
        q[header + 1] = code
        q[header + 2] = k
        keeper.d[header + 3] = start
        q[header] = BLOCKED if len(_threads) == 1 and not timeout else _state(timeout)
        try:
            done = inner.wait(*timeout)
        finally:
            q[header] = RUNNING
        self[0] = _DONE  # gloo's work holds the tensor
        row[WAIT_START] = start
        row[WAIT_END] = end = perf_counter()
        if row[END] == row[3]:
            row[END] = end
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self[0], name)

    def __repr__(self) -> str:
        return f"<work of torch.distributed, {'done' if self.is_completed() else 'under way'}>"

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class _Done:
    """Stands for a work that has been waited for."""

    def wait(self, *timeout) -> bool:
        return True

    is_completed = is_success = synchronize = block_current_stream = wait

    def exception(self) -> None:
        return None


_DONE = _Done()


def _state(timeout: tuple) -> int:
    """Whether a rank that waits is blocked for good: not if another of its threads may post, or if it gives up."""
    others = [t for t in threading.enumerate() if type(t).__name__ != "TMonitor"]  # tqdm's posts nothing
    return MAY_MOVE if timeout or len(others) > 1 else BLOCKED


def note_end(work: Any, row: list[Any]) -> None:
    """The row learns its end from gloo's thread."""

    def note(_) -> None:
        row[END] = perf_counter()

    work.get_future().add_done_callback(note)
