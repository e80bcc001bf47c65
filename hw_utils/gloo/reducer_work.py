"""The work that C++ gets: DistributedDataParallel's reducer asks for collectives and waits for them itself.

Where it waits by the work (buffers, the sizes of the parameters) we see it, as C++ calls our `wait`. In a backward pass
it takes futures of its works, and waits for these in a callback that it queues for the end of the pass, together with
the last bucket. Ours is queued with the first bucket: it runs just before, and waits for the same works.

A future that Python code takes from a work, as a communication hook does, is not waited for: only that code knows when.
Such a call has a start and no wait in the ledger, and a rank that hangs there counts as busy until the timeout.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hw_utils.gloo.work import DONE, INNER, LedgerWork, note_end


class CppWork(dist.Work):
    """A ledger's work as a real `dist.Work`."""

    def __init__(self, work: LedgerWork, held_in: dict[int, CppWork]) -> None:
        super().__init__()
        self._work, self._held_in = work, held_in
        self._row, self._inner = work

    @property
    def is_awaited(self) -> bool:
        """Whether nobody has waited for it yet."""
        return self._row[INNER] is not DONE

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        is_over = self._work.wait(timeout or None)  # C++ says 0 where there is no limit
        self._held_in.pop(id(self), None)
        return is_over

    def synchronize(self) -> None:
        self.wait()


def _of_gloo(name: str) -> Callable[..., Any]:
    """A method that asks gloo's work. A Python function: C++ finds no other kind."""
    return lambda self, *arguments: getattr(self._inner, name)(*arguments)


for _name in ("get_future", "result", "is_completed", "is_success", "exception", "_source_rank"):
    setattr(CppWork, _name, _of_gloo(_name))


class CppWorks:
    """Those of one rank that a backward pass is going to wait for."""

    def __init__(self) -> None:
        self._awaited: dict[int, list[CppWork]] = {}  # number of the backward pass -> its works
        self._not_over: dict[int, CppWork] = {}  # C++ keeps no Python object alive: it would wait for ever
        self._handed: dict[int, CppWork] = {}  # reducer -> what its join() has given it

    def take(self, ledger_work: LedgerWork) -> CppWork:
        """What a caller in C++ gets; written down as waited for when it waits."""
        row, inner = ledger_work
        note_end(inner, row)
        work, backward = CppWork(ledger_work, self._not_over), torch._C._current_graph_task_id()
        for one in [one for one, its in self._not_over.items() if not its.is_awaited]:
            del self._not_over[one]
        self._not_over[id(work)] = work
        if backward != -1:
            works = self._awaited.setdefault(backward, [])
            works.append(work)
            if len(works) == 1:
                torch.autograd.Variable._execution_engine.queue_callback(lambda: self._await(backward))
        return work

    def hand(self, reducer: dist.Reducer, ledger_work: LedgerWork) -> CppWork:
        """The same for one that a reducer keeps: it waits, and then asks for the future."""
        self._handed[id(reducer)] = work = self.take(ledger_work)
        return work

    def _await(self, backward: int) -> None:
        for work in self._awaited.pop(backward):
            work.wait()
