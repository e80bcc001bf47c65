"""Whether a launch stands still for good, from what its ranks have published: the kernel polls `Watcher.deadlock()`.

A rank is stuck if it is blocked in a message or collective that some rank has yet to post, and every such rank is stuck
too or has returned; or in a wait of its own, as for a lock, see `processes/lock_waits.py`. A deadlock is a launch of
which every live rank is stuck in one and the same wait for 0.25 s, or for 2 s if one is in a wait of its own. A rank
that computes is not blocked; a message under way has been posted on both sides; neither is ever taken for one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from hw_utils.core.calls.wait_for import OWN_WAIT, wait_table, waits_in
from hw_utils.core.errors import Waiting, WaitTable
from hw_utils.core.source.lines import Where, locate
from hw_utils.gloo.shared_state import (
    ANY_PEER,
    BLOCKED,
    CALLS,
    COLLECTIVE,
    DIRECTION,
    DONE,
    GROUP,
    MAX_GROUPS,
    MAY_MOVE,
    N_CHANNELS,
    OVERFLOW,
    PEER,
    RECEIVE,
    RETURNED,
    RUNNING,
    SEND,
    SINCE,
    TAG,
    Board,
)

STILL_S = 0.25
UNSURE_STILL_S = 2.0  # where a member may finish a collective before all have called it, or waits in its own process
OWN = -1  # the kind of a wait that is none for another rank

# Who must have called a collective before a member can leave it; others: everybody.
_ROOT_FIRST = frozenset({"broadcast", "scatter", "broadcast_object_list", "scatter_object_list"})
_TO_ROOT = frozenset({"reduce", "gather", "gather_object"})


@dataclass(frozen=True)
class Wait:
    """What one blocked rank waits for."""

    rank: int
    kind: int
    place: int  # its channel or the group
    k: int
    since: float
    needs: tuple[int, ...]  # ranks that have yet to post
    sure: bool = True  # False: it may go on before they do
    peer: int = ANY_PEER
    tag: int = 0


class Watcher:
    """Reads the board of a launch; remembers since when it has not changed."""

    def __init__(self, board: Board) -> None:
        self.board, self.q, self.layout = board, board.q, board.layout
        self._key: object = None
        self._since = 0.0

    def _state(self, rank: int) -> int:
        return self.board.wait_of(rank)[0]

    def blocked(self) -> list[int]:
        """The ranks that are in a wait now."""
        return [r for r in range(self.layout.world_size) if self._state(r) in (BLOCKED, MAY_MOVE)]

    def unsure(self, gone: set[int]) -> list[int]:
        """The ranks that may go on by themselves, for all that is published: they run, or have threads that do."""
        return [r for r in range(self.layout.world_size) if r not in gone and self._state(r) in (RUNNING, MAY_MOVE)]

    def deadlock(
        self, gone: set[int], start_s: float, own: dict[int, Callable[[int], Where | None]] | None = None
    ) -> WaitTable | None:
        """The table of a deadlock that has held still long enough, else None; cheap when some rank is running.

        own: of ranks that run or may move, those of which every thread stands still; what tells the line.
        """
        own, ranks = own or {}, range(self.layout.world_size)
        returned = {r for r in ranks if self._state(r) == RETURNED}
        live = [r for r in ranks if r not in returned and r not in gone]
        waits = [self._standing(r) if r in own else self._wait(r) for r in live]
        moves = any(w is None or not (w.needs or w.kind == OWN) for w in waits)
        if not live or moves or not _closed(waits, returned):
            self._key = None
            return None
        now = time.perf_counter()
        if waits != self._key:
            self._key, self._since = waits, now
            return None
        if now - self._since < (STILL_S if all(w.sure for w in waits) else UNSURE_STILL_S):
            return None
        rows = [self._own_row(w, own[w.rank], start_s) if w.kind == OWN else self._row(w, start_s) for w in waits]
        return wait_table(rows, returned)

    def _own_row(self, wait: Wait, line_of: Callable[[int], Where | None], start_s: float) -> Waiting:
        return Waiting(wait.rank, OWN_WAIT, (), max(self._since - start_s, 0.0), line_of(wait.rank))

    def last_call(self, rank: int) -> Where | None:
        """The line of the last wait that a rank has published."""
        _, kind, place, k = self.board.wait_of(rank)
        if self.board.d[self.layout.header(rank) + SINCE] == 0:
            return None
        _, file, line = self.board.site(rank, self._site(Wait(rank, kind, place, k, 0.0, ())))
        return locate(file, line) if file else None

    def _standing(self, rank: int) -> Wait | None:
        """That of a rank of which every thread waits, for other ranks or for each other."""
        if self._state(rank) == RUNNING:
            return Wait(rank, OWN, 0, 0, 0.0, (), sure=False)
        found = self._wait(rank, MAY_MOVE)
        return found and replace(found, sure=False)

    def _wait(self, rank: int, as_published: int = BLOCKED) -> Wait | None:
        at = self.layout.header(rank)
        since, published = self.board.d[at + SINCE], self.board.wait_of(rank)
        state, kind, place, k = published
        if self.q[at + OVERFLOW] or state != as_published:
            return None
        found = (
            self._collective(rank, place, k, since)
            if kind == COLLECTIVE
            else self._message(rank, kind, place, k, since)
        )
        return found if self.board.wait_of(rank) == published else None  # it has moved meanwhile

    def _message(self, rank: int, kind: int, place: int, k: int, since: float) -> Wait | None:
        at = self.layout.channel(rank, place)
        peer, tag, group = self.q[at + PEER], self.q[at + TAG], self.q[at + GROUP]
        if peer == ANY_PEER:
            others = tuple(r for r in range(self.layout.world_size) if r != rank)
            pending = any(self._pending_send(r, rank, tag, group) for r in others)
            return Wait(rank, kind, place, k, since, () if pending else others, True, peer, tag)
        met = self._posted(peer, rank, tag, group, 1 - kind) > k
        if kind == SEND and self._wildcards(peer, tag, group):
            met = True
        return Wait(rank, kind, place, k, since, () if met else (peer,), True, peer, tag)

    def _find(self, rank: int, peer: int, tag: int, group: int, direction: int) -> int:
        for index in range(self.q[self.layout.header(rank) + N_CHANNELS]):
            at = self.layout.channel(rank, index)
            if (self.q[at + PEER], self.q[at + TAG], self.q[at + GROUP], self.q[at + DIRECTION]) == (
                peer, tag, group, direction
            ):  # fmt: skip
                return at
        return 0

    def _posted(self, rank: int, peer: int, tag: int, group: int, direction: int) -> int:
        at = self._find(rank, peer, tag, group, direction)
        return self.board.posted(at + CALLS) if at else 0

    def _pending_send(self, sender: int, receiver: int, tag: int, group: int) -> bool:
        sent = self._posted(sender, receiver, tag, group, SEND)
        return sent > self._posted(receiver, sender, tag, group, RECEIVE)

    def _wildcards(self, rank: int, tag: int, group: int) -> bool:
        at = self._find(rank, ANY_PEER, tag, group, RECEIVE)
        return bool(at) and self.board.posted(at + CALLS) > self.q[at + DONE]

    def _collective(self, rank: int, group: int, k: int, since: float) -> Wait | None:
        if group >= MAX_GROUPS:
            return None
        members = self.board.members(group)
        missing = tuple(r for r in members if self._collectives(group, r) <= k)
        op, root = self._op_and_root(group, rank, k)
        root = members[root] if 0 <= root < len(members) else -1
        sure = True
        if op in _ROOT_FIRST and rank != root:
            missing, sure = ((root,), True) if root in missing else (missing, False)
        elif op in _TO_ROOT and rank != root:
            missing, sure = ((root,), op != "reduce") if root in missing else (missing, False)
        return Wait(rank, COLLECTIVE, group, k, since, missing, sure)

    def _collectives(self, group: int, rank: int) -> int:
        return self.board.posted(self.layout.group_calls(group, rank))

    def _op_and_root(self, group: int, rank: int, k: int) -> tuple[str, int]:
        call = self.board.call(self.layout.group_calls(group, rank), k)
        return (self.board.site(rank, call[2])[0], (call[1] & 0xFFFF) - 1) if call else ("", -1)

    def _row(self, wait: Wait, start_s: float) -> Waiting:
        op, file, line = self.board.site(wait.rank, self._site(wait))
        where = locate(file, line) if file else None
        since = max(wait.since - start_s, 0.0)
        return Waiting(wait.rank, waits_in(op), wait.needs, since, where, wait.tag, self._other_tags(wait))

    def _site(self, wait: Wait) -> int:
        if wait.kind == COLLECTIVE:
            at = self.layout.group_calls(wait.place, wait.rank)
        else:
            at = self.layout.channel(wait.rank, wait.place) + CALLS
        call = self.board.call(at, wait.k)
        return call[2] if call else -1

    def _other_tags(self, wait: Wait) -> str:
        """`rank 1 sends with tag 7`: the other side is there, with another tag."""
        if wait.kind == COLLECTIVE or wait.peer == ANY_PEER:
            return ""
        for index in range(self.q[self.layout.header(wait.peer) + N_CHANNELS]):
            at = self.layout.channel(wait.peer, index)
            peer, tag, group, direction = self.q[at : at + 4]
            if (peer, direction) == (wait.rank, 1 - wait.kind) and tag != wait.tag:
                mine = self._posted(wait.rank, wait.peer, tag, group, wait.kind)
                if self.board.posted(at + CALLS) > mine:
                    verb = "sends" if wait.kind == RECEIVE else "receives"
                    return f"rank {wait.peer} {verb} with tag {tag}"
        return ""


def _closed(waits: list[Wait], returned: set[int]) -> bool:
    """Whether nobody outside could let one of them go on."""
    inside = {w.rank for w in waits} | returned
    return all(set(w.needs) <= inside for w in waits)
