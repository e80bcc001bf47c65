"""The ledger of `launch` said plainly: what a rank notes around each call, and the rows that all notes together make.

`recorded_calls.py` does this in some 2 us a call, on a board that other processes read; here nothing is quick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from hw_utils.core import collective_algorithms as algorithms


@dataclass
class Note:
    """One call as the rank that makes it sees it; times are of its own clock, before and after."""

    op: str
    peer: int | None  # None: a collective
    n_bytes: int  # of its own tensor
    tag: int
    ranks: tuple[int, ...] | None  # of the group; None: all
    root: int  # of a collective that has one, its place in the group
    line: int
    order: int
    called_s: float
    returned_s: float = 0.0
    waited: int | None = None
    wait_called_s: float = 0.0
    wait_returned_s: float = 0.0


class Notebook:
    """What one rank notes, call by call and wait by wait."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.n_places = 0  # calls and waits so far

    def place(self) -> int:
        self.n_places += 1
        return self.n_places - 1

    def call(self, op, n_bytes, do: Callable[[], Any], peer=None, tag=0, ranks=None, root=0, is_async=False) -> Any:
        """`do` calls torch.distributed on its one line; what it returned, with the note, if it is to be waited for."""
        line = do.__code__.co_firstlineno
        note = Note(op, peer, n_bytes, tag, ranks, root, line, self.place(), perf_counter())
        self.notes.append(note)
        handle = do()
        note.returned_s = perf_counter()
        if is_async:
            return handle, note
        note.waited = note.order if op in ("send", "recv") else self.place()
        note.wait_called_s, note.wait_returned_s = note.called_s, note.returned_s
        return None

    def wait(self, handle, note: Note) -> None:
        note.waited, note.wait_called_s = self.place(), perf_counter()
        handle.wait()
        note.wait_returned_s = perf_counter()


def rows_of(notebooks: list[list[Note]]) -> list[list[tuple]]:
    """A rank's rows: (op, peer, bytes, tag, group, line, order, waited, sent bytes, sent messages, rounds)."""
    everybody = tuple(range(len(notebooks)))
    return [
        [
            (n.op, n.peer, n.n_bytes, n.tag, n.ranks, n.line, n.order, n.waited, *sent(n, rank, n.ranks or everybody))
            for n in notes
        ]
        for rank, notes in enumerate(notebooks)
    ]


def sent(note: Note, rank: int, members: tuple[int, ...]) -> tuple[int, int, int]:
    """(bytes, messages, rounds) that a rank puts on the wire for a call."""
    if note.peer is not None:
        is_send = note.op in ("send", "isend")
        return note.n_bytes * is_send, int(is_send), 1
    size, place = len(members), members.index(rank)
    cost = algorithms.cost(note.op, note.n_bytes, size, note.root, 4)
    return int(cost.sent_bytes[place]), int(cost.sent_messages[place]), cost.rounds


def communications(notebooks: list[list[Note]]) -> list[list[tuple]]:
    """What each call of each rank is a side of: the k-th message from one to another with a tag in a group, or the k-th
    collective of a group."""
    found = []
    for rank, notes in enumerate(notebooks):
        seen: Counter = Counter()
        keys = []
        for n in notes:
            ends = () if n.peer is None else (rank, n.peer) if n.op in ("send", "isend") else (n.peer, rank)
            key = n.ranks, ends, n.tag
            keys.append((*key, seen[key]))
            seen[key] += 1
        found.append(keys)
    return found
