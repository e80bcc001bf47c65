"""Ranks that meet: a communication layer for checks, in which a collective is done when the last rank arrives.

It needs no barrier and no lock, for only one rank runs at a time (`turns`), and every call is in its log.
So an exercise on layers is graded on the layers, whatever the student's own communication layer does.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch

from hw_utils.core.errors import (
    Deadlock,
    Failure,
    Frame,
    TimedOut,
    Waiting,
    WaitTable,
    WorkerFailed,
    is_stubs,
    ranks_text,
)
from hw_utils.core.source.lines import Where, locate
from hw_utils.core.source.students_files import is_students, students_line
from hw_utils.threads.turns import Stopped, Turns

OPS = ("sum", "mean")


class Rendezvous:
    """What a rank calls `context`: `world_size`, `all_gather`, `all_reduce`; `calls` has one row a rank and call."""

    LENDS = ("world_size", "all_gather", "all_reduce")  # what an answer may use

    def __init__(self, turns: Turns) -> None:
        self.world_size = turns.world_size
        self.calls: list[dict[str, Any]] = []
        self._turns = turns
        self._here: dict[int, tuple[tuple, torch.Tensor, Where | None]] = {}
        self._results: dict[int, Any] = {}

    def all_gather(self, tensor: torch.Tensor, rank: int, group_id: str) -> list[torch.Tensor]:
        """A copy of every rank's tensor, in rank order."""
        return self._meet("all_gather", tensor, rank, group_id, "")

    def all_reduce(self, tensor: torch.Tensor, rank: int, group_id: str, op: str = "sum") -> torch.Tensor:
        """The sum or the mean of all ranks' tensors."""
        if op not in OPS:
            raise ValueError(f"op must be one of {', '.join(OPS)}, got {op!r}")
        return self._meet("all_reduce", tensor, rank, group_id, op)

    def _meet(self, call: str, tensor: torch.Tensor, rank: int, group_id: str, op: str) -> Any:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{call} takes a tensor first, got {type(tensor).__name__}: {call}(tensor, rank, group_id)")
        if rank != self._turns.current:
            raise ValueError(f"{call} was given rank {rank!r} on rank {self._turns.current}")
        self.calls.append({"rank": rank, "call": call, "op": op, "group_id": str(group_id), "numel": tensor.numel()})
        file, line = students_line(sys._getframe(2))
        what = (call, op, str(group_id), tuple(tensor.shape), tensor.dtype)
        self._here[rank] = (what, tensor.detach().clone(), locate(file, line) if line else None)
        if len(self._here) == self.world_size:
            self._answer()
        self._turns.park(lambda: rank in self._results, (call, group_id))
        return self._results.pop(rank)

    def _answer(self) -> None:
        first, _, _ = self._here[0]
        for rank, (what, _, _) in self._here.items():
            if what != first:
                raise ValueError(f"rank 0 calls {_called(first)} while rank {rank} calls {_called(what)}")
        tensors = [self._here[rank][1] for rank in range(self.world_size)]
        self._here = {}
        for rank in range(self.world_size):
            if first[0] == "all_gather":
                self._results[rank] = [tensor.clone() for tensor in tensors]
            else:
                stacked = torch.stack(tensors)
                self._results[rank] = stacked.sum(0) if first[1] == "sum" else stacked.mean(0)

    def waiting(self) -> dict[int, tuple[tuple, Where | None]]:
        """rank -> the call it stands in, and its line."""
        return {rank: (what, where) for rank, (what, _, where) in sorted(self._here.items())}


def _called(what: tuple) -> str:
    call, op, group_id, shape, dtype = what
    return f"{call}({group_id!r}{', ' + repr(op) if op else ''}) with {shape} of {str(dtype).removeprefix('torch.')}"


def run_in_turns(
    worker: Callable[[int, Rendezvous], Any],
    world_size: int,
    prepare: Callable[[Rendezvous], None] | None = None,
    timeout_s: float = 8.0,
) -> tuple[list[Any], list[dict[str, Any]]]:
    """(results in rank order, calls) of `worker(rank, context)`; ranks start and go on in falling order.

    `prepare(context)` runs before any rank does.

    Raises:
        WorkerFailed, Deadlock, TimedOut: as `run_threads`. NotImplementedError: a stub was called.
    """
    with Turns(world_size) as turns:
        context = Rendezvous(turns)
        if prepare:
            prepare(context)
        ended = turns.run(
            [lambda rank: worker(rank, context)] * world_size, lambda runnable, me: runnable[-1], timeout_s
        )
    errors = {e.rank: e.error for e in ended if e.error is not None and not isinstance(e.error, Stopped)}
    for error in errors.values():
        if is_stubs(error):
            raise NotImplementedError from None
    if turns.timed_out:
        frames = (Frame(locate(*turns.busy_at)),) if turns.busy_at[1] else ()
        raise TimedOut([Failure(turns.current, "timeout", f"still busy after {timeout_s:g} s", frames)])
    if errors:
        raise WorkerFailed([_failure(r, e) for r, e in errors.items()]) from next(iter(errors.values()))
    if turns.stuck:
        raise Deadlock(_table(context, [e.rank for e in ended if not isinstance(e.error, Stopped)]))
    return [e.result for e in ended], context.calls


def _failure(rank: int, error: BaseException) -> Failure:
    frames = tuple(
        Frame(locate(f.filename, f.lineno or 0), f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if is_students(f.filename)
    )
    return Failure(rank, "exception", f"{type(error).__name__}: {error}", frames, error)


def _table(context: Rendezvous, gone: list[int]) -> WaitTable:
    waiting = context.waiting()
    note = f"{ranks_text(gone)} {'has' if len(gone) == 1 else 'have'} returned" if gone else ""
    rows = [
        Waiting(rank, what[0], tuple(r for r in range(context.world_size) if r not in waiting), 0.0, where, note=note)
        for rank, (what, where) in waiting.items()
    ]
    return WaitTable(rows, sentence=f"{ranks_text(waiting)} stand in a collective that not all ranks call; {note}")
