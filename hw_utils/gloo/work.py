"""gloo's work, which writes down when it was waited for and publishes what the rank waits for."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any

import torch.distributed as dist

from hw_utils.gloo.shared_state import BLOCKED, MAY_MOVE, RUNNING, SINCE, WAIT, K

# A row of the ledger while the rank runs: a tuple if the call is over, else a list, with gloo's work behind the columns
# until it was waited for. `site` stands for the ledger's op, file and line; order and waited follow from the times;
# `kind` is for an object collective's parts.
COLUMNS = (
    "site", "peer", "n_bytes", "start_s", "end_s", "tag", "group", "seq", "wait_start_s", "wait_end_s", "root",
    "itemsize", "part", "kind",
)  # fmt: skip
PEER, START, END, SEQ, WAIT_START, WAIT_END = 1, 3, 4, 7, 8, 9
INNER, WORD = 14, 15

waits_alone = [True]  # empty once the rank has started a thread of its own


def watch_threads() -> None:
    """From now on a rank's threads are known to `waits_alone`, which is read in 10 ns."""
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        waits_alone.clear()
        start(thread)

    threading.Thread.start = noted


class LedgerWork(list):
    """What `isend`, `irecv` and asynchronous collectives return: [its row, gloo's work].

    A list because that is quickest; it behaves as a work, not as a list. It holds gloo's work, and with it the tensors,
    for as long as the program holds on to it, as torch's own does; the row only until it was waited for.
    """

    __slots__ = ()
    __class__ = property(lambda self: dist.Work)  # FSDP2 waits for what `isinstance` calls a Work, and for nothing else

    def __getattr__(self, name: str) -> Any:
        return getattr(self[1], name)

    def __repr__(self) -> str:
        return f"<work of torch.distributed, {'done' if self.is_completed() else 'under way'}>"

    def synchronize(self) -> None:
        self.wait()

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class _Done:
    """Stands for the work of a call that has blocked where it was made, and for a row's that was waited for."""

    __class__ = property(lambda self: dist.Work)

    def wait(self, timeout=None) -> bool:
        return True

    is_completed = is_success = wait

    def synchronize(self) -> None: ...

    def exception(self) -> None:
        return None


DONE = _Done()


def work_class(q: memoryview, d: memoryview, header: int, gives_up: tuple = (), limit: tuple = ()) -> type[LedgerWork]:
    """The works of a rank whose header is at a place of its board; gives_up: the timeout of their group, if short.

    limit: it again, for messages, which gloo lets wait for as long as their group was once made for.
    """
    wait_at, k_at, since_at = header + WAIT, header + K, header + SINCE
    alone = [] if gives_up else waits_alone

    class Work(LedgerWork):
        __slots__ = ()

        def wait(self, timeout=None) -> bool:
            row, inner = self
            if row[14] is DONE:  # INNER
                return True
            start = perf_counter()
            word = row[15]  # WORD
            q[k_at] = row[7]  # SEQ
            d[since_at] = start
            its_own = limit if timeout is None else (timeout,)
            q[wait_at] = word if alone and timeout is None else may_move(word, its_own or gives_up)
            try:
                done = inner.wait(*its_own)
            finally:
                q[wait_at] = word - IS_WAITING
            row[14] = DONE
            row[8] = start
            row[9] = perf_counter()
            return done

    return Work


IS_WAITING = BLOCKED - RUNNING


def may_move(word: int, timeout: tuple = ()) -> int:
    """What a rank that waits publishes: perhaps that it may go on by itself, as another thread posts or it gives up."""
    posting = [t for t in threading.enumerate() if type(t).__name__ != "TMonitor" and "hw_utils" not in t.name]
    return word + MAY_MOVE - BLOCKED if timeout or len(posting) > 1 else word  # TMonitor is tqdm's


def note_end(work: Any, row: list[Any]) -> None:
    """The row learns its end from gloo's thread; where that work has no future, from the wait."""

    def note(_) -> None:
        row[END] = perf_counter()

    try:
        future = work.get_future()
    except RuntimeError:  # "Work::getFuture not implemented": those of several tensors, of reduce_scatter
        return
    future.add_done_callback(note)
