"""Threads that wait for each other: how that is found, and what a wait-for table says of it."""

from __future__ import annotations

import threading
from typing import Any

from hw_utils.core.errors import Waiting, ranks_text
from hw_utils.core.source.lines import locate
from hw_utils.threads.thread_frames import Stand

LOOK_S = 0.05  # between two looks at where the threads stand
_STILL_S = 0.3  # all blocked for this long, at the same places: a deadlock


class BlockedThreads:
    """Which ranks were blocked at the last look, and since when at the same place."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[Any, float]] = {}  # rank -> its place, None where it is not blocked; since when
        self._ranks: set[int] = set()  # that still run
        self._fewer_s = 0.0  # when one of them was seen to have returned: it may just have woken another

    def are_still(self, stands: dict[int, Stand], now_s: float) -> bool:
        """Whether all threads that still run have been blocked where they are for long: nobody will go on."""
        if self._ranks != set(stands):
            self._ranks, self._fewer_s = set(stands), now_s
        if now_s < LOOK_S:
            return False
        for rank, stand in stands.items():
            place = (stand.line, *map(id, stand.locks)) if stand.blocked else None
            if place is None or self._since.get(rank, (None, 0.0))[0] != place:
                self._since[rank] = (place, now_s)
        latest_s = {r: max(self.since_s(r), self._fewer_s) for r in stands}
        return bool(stands) and all(s.blocked and now_s - latest_s[r] >= _STILL_S for r, s in stands.items())

    def since_s(self, rank: int) -> float:
        """Seconds after the start of the run; 0 if it was never seen blocked."""
        return self._since.get(rank, (None, 0.0))[1]


def rows_of(waits: dict[int, Stand], world_size: int, since_s) -> list[Waiting]:
    """A row a rank that waits: for whom, in what, at which line, since when."""
    return [_row(rank, stand, waits, world_size, since_s(rank)) for rank, stand in sorted(waits.items())]


def _row(rank: int, stand: Stand, waits: dict[int, Stand], world_size: int, since_s: float) -> Waiting:
    together = {r for r, s in waits.items() if s.thing is stand.thing}
    peers = tuple(r for r in range(world_size) if r not in together and r != rank)
    note = _returned([r for r in peers if r not in waits])
    if isinstance(stand.thing, threading.Barrier):
        note = "; ".join(filter(None, [f"{len(together)} of {stand.thing.parties} are here", note]))
    where = locate(stand.file, stand.line) if stand.line else None
    return Waiting(rank, stand.call, peers, since_s, where, note=note)


def sentence_of(waits: dict[int, Stand], world_size: int) -> str:
    """Who waits in what, who has returned: `ranks 0 and 1 wait in Barrier.wait for 3 ranks; rank 2 has returned`."""
    by_thing: dict[int, list[int]] = {}
    for rank, stand in waits.items():
        by_thing.setdefault(id(stand.thing), []).append(rank)
    parts = [
        f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {_named(waits[ranks[0]])}"
        for ranks in by_thing.values()
    ]
    return "; ".join(filter(None, [*parts, _returned([rank for rank in range(world_size) if rank not in waits])]))


def _named(stand: Stand) -> str:
    if isinstance(stand.thing, threading.Barrier):
        return f"{stand.call} for {stand.thing.parties} ranks"
    if stand.call == "Lock.acquire":
        return "Lock.acquire for a lock that nobody releases"
    return stand.call


def _returned(ranks: list[int]) -> str:
    return f"{ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'} returned" if ranks else ""
