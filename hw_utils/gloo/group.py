"""A gloo process group that keeps the ledger: what `dist.send`, DDP and the rest call in a rank of `launch`.

torch builds it wherever it would have built gloo's own group (`install`), so that the student's code, the backend's
name and subgroups are as usual. Every call is written down as a row (see `ledger_buffer.py`), published on the board,
compared with what the other side has published, then handed to gloo.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from hw_utils.core.calls.arguments import SHORT_S, as_timedelta
from hw_utils.core.calls.c10d_operations import Front
from hw_utils.core.calls.public_calls import DTYPE_CODES, caller
from hw_utils.core.versions import torch_version
from hw_utils.gloo.compared_calls import Helper
from hw_utils.gloo.ledger_buffer import Keeper
from hw_utils.gloo.mismatch import collectives_unlike, messages_unlike
from hw_utils.gloo.recorded_calls import CODES, COLLECTIVES, collective, compared, point_to_point
from hw_utils.gloo.shared_state import (
    ANY_PEER,
    CALLS,
    COLLECTIVE,
    DONE,
    FIRST,
    MAX_GROUPS,
    ONE,
    OVERFLOW,
    POSTED,
    RECEIVE,
    SEND,
    SINCE,
    WAIT,
    Calls,
    Channel,
    K,
    wait_word,
)
from hw_utils.gloo.work import INNER, PEER, SEQ, work_class

FIRST_QUIET = (2, 13)  # of torch: nothing older than it was tried but 2.10
BY_HAND = 8  # of the places on the board: for groups that programs make without new_group
_Gloo = c10d.ProcessGroupGloo
_TIMEOUTS = (timedelta, float, getattr(_Gloo, "_Options", float))  # what may say when a group gives up


@contextlib.contextmanager
def _unsaid() -> Iterator[None]:
    """gloo of older versions of torch tells the process's stdout how many peers it has: not the worker's words.

    https://github.com/pytorch/gloo/issues/462
    """
    if torch_version() >= FIRST_QUIET:
        yield
        return
    own = os.dup(1)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def _short(timeout: timedelta) -> tuple[timedelta, ...]:
    """The timeout, if a group with it is to run into it."""
    return (timeout,) if timeout.total_seconds() <= SHORT_S else ()


class LedgerGroup(dist.ProcessGroup):
    """gloo, with every operation written down."""

    keeper: Keeper | None = None  # of this process

    def __init__(self, store, rank: int, size: int, *more, **named) -> None:
        super().__init__(rank, size)
        with _unsaid():
            self._inner = _Gloo(store, rank, size, *more, **named)  # what else there is depends on torch's version
        # DDP's logger asks gloo for its number of threads.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._inner)
        self.plain = dist.ProcessGroup(store, rank, size)  # what torch's own functions would call
        self.plain._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.plain._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._inner)
        self._rank, self._size, self._name = rank, size, ""
        limit = named.get("timeout", next((m for m in more if isinstance(m, _TIMEOUTS)), None))
        limit = as_timedelta(getattr(limit, "_timeout", limit) or c10d.default_pg_timeout)
        self.limit, self.gives_up = limit, _short(limit)
        self.channels: dict[tuple[int, int, int], Channel] = {}  # (peer in the group, tag, direction)
        self.ranks_by_hand: tuple[int, ...] = ()  # of one whose members torch's books do not have, and its place
        self.slot_by_hand = MAX_GROUPS
        self.ranks: tuple[int, ...] = ()  # global; known when the group is first used, like its collectives
        self.calls: Calls | None = None
        self.front: Front | None = None  # takes the calls with tensors whose class decides what becomes of them
        self.store = store
        self.helper: Helper | None = None  # where members compare what they call, if they do

    def __repr__(self) -> str:
        """As in texts of torch's errors."""
        return f"<torch.distributed.distributed_c10d.ProcessGroup object at {id(self):#x}>"

    def getBackendName(self) -> str:
        return "gloo"

    def _set_sequence_number_for_group(self) -> None:
        """Torch asks it of each group that it makes, and then compares calls at this level of debugging."""
        self._inner._set_sequence_number_for_group()
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:
            self.compare_calls()

    def compare_calls(self, helper: LedgerGroup | None = None) -> LedgerGroup:
        """Itself: from now on members compare what they call before each collective, over a gloo group of their own."""
        if self.helper is None:
            store = dist.PrefixStore("helper", self.store)
            its_gloo = helper._inner if helper else _Gloo(store, self._rank, self._size, self.limit)
            self.helper = Helper(its_gloo, (helper or self).gives_up)
            if self.ranks:
                self.settle()
        return self

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._inner._set_default_timeout(timeout)
        self.limit, self.gives_up = timeout, _short(timeout)
        if self.ranks:
            self.settle()

    @property
    def pg_name(self) -> str:
        self._name = c10d._world.pg_names.get(self, self._name)  # still asked for when it is destroyed
        return self._name

    @property
    def group_name(self) -> str:
        return self.pg_name

    @property
    def options(self) -> Any:
        return self._inner.options

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    def settle(self) -> None:
        """Who is in it, its place in the ledger and on the board (the same on every rank), and its methods."""
        keeper = self.keeper
        publisher = keeper.publisher
        numbered = getattr(c10d._world.default_pg, "ranks_by_hand", ())  # if the default group is of some ranks only
        ranks = tuple(c10d._world.pg_group_ranks.get(self) or range(self._size))
        self.ranks = self.ranks_by_hand or tuple(numbered[r] if numbered else r for r in ranks)
        known = None if self.ranks == tuple(range(keeper.world_size)) else self.ranks
        name = self.pg_name  # the same on all members, and no other group's of this world
        world = getattr(c10d._world.default_pg, "_name", "") if numbered else keeper.n_worlds
        full_name = name if self.ranks_by_hand or not world else f"{name} of {world}"
        self.number = keeper.groups.setdefault((full_name, known), len(keeper.groups))
        place = keeper.n_destroyed + int(name) if name.isdigit() and not numbered else MAX_GROUPS
        self.slot = self.slot_by_hand if self.ranks_by_hand else place if place < MAX_GROUPS - BY_HAND else MAX_GROUPS
        if self.slot == MAX_GROUPS:
            publisher.q[publisher.header + OVERFLOW] = 1
        publisher.board.set_members(self.slot, self.ranks)
        places = [publisher.layout.group_calls(self.slot, r) for r in self.ranks]
        self.calls = self.calls or Calls(places[self._rank], wait_word(COLLECTIVE, self.slot))
        # The last place is shared; and what is called past torch's functions, gloo has yet to check.
        is_compared = self.slot < MAX_GROUPS and self in c10d._world.pg_group_ranks
        self.compared = {self.ranks[i]: places[i] for i in compared(self._rank, self._size) if is_compared}
        self.Work = self.MessageWork = keeper.Work
        if self.gives_up:
            of_rank = keeper.q, keeper.d, keeper.header, self.gives_up
            self.Work, self.MessageWork = work_class(*of_rank), work_class(*of_rank, limit=self.gives_up)
        self.send = point_to_point(self, SEND)
        self.recv = point_to_point(self, RECEIVE)
        for name, own in COLLECTIVES.items():
            setattr(self, name, collective(self, name, own))

    def send(self, tensors, dst: int, tag: int = 0):
        self.settle()
        return self.send(tensors, dst, tag)

    def recv(self, tensors, src: int, tag: int = 0):
        self.settle()
        return self.recv(tensors, src, tag)

    def ask_classes(self, name: str, arguments: tuple, named: dict):
        """A call with a tensor that may have no memory, as torch's own groups make it: its class is asked."""
        self.front = self.front or Front(self)
        return getattr(self.front, name)(*arguments, **named)

    def check_peer(self, peer: int) -> None:
        """Raises ValueError if no such rank is in the group: gloo would wait for it for ever."""
        if not 0 <= peer < self._size:
            raise ValueError(f"there is no rank {peer} to send to or receive from: ranks are 0 to {self._size - 1}")

    def open(self, peer: int, tag: int, direction: int) -> Channel:
        """The channel with a peer of the group, new or known."""
        channel = self.channels.get((peer, tag, direction))
        if channel is None:
            other = ANY_PEER if peer == ANY_PEER else self.ranks[peer]
            channel = self.keeper.publisher.channel(other, tag, self.slot, direction)
            self.channels[peer, tag, direction] = channel
        return channel

    def look(self, channel: Channel, peer: int, tag: int, direction: int, k: int) -> None:
        """Compares message k with what the peer has posted; a send may meet a receive from anybody."""
        publisher, other = self.keeper.publisher, self.ranks[peer]
        n_channels = 0 if channel.is_met else publisher.q[channel.other_at]
        if not channel.is_met and n_channels != channel.seen:
            channel.seen = n_channels
            at = publisher.counterpart(other, tag, self.slot, direction)
            channel.is_met, channel.other_at = bool(at), at or channel.other_at
        if channel.is_met:
            self.compare(channel, direction, tag, other, channel.other_at, k)
        elif direction == SEND:
            self.compare(channel, SEND, tag, other, *publisher.waiting_wildcard(other, tag, self.slot))

    def compare(self, own: Calls, direction: int, tag: int, other: int, at: int, k: int) -> None:
        """Raises if message k of the calls at a place is unlike our last one."""
        theirs = self._unlike(own, at, k) if at else None
        if theirs is not None:
            mine = (own.n_bytes, own.code, own.site)
            raise messages_unlike(self.keeper.publisher, mine, direction, tag, other, theirs)

    def look_around(self, k: int, fit: Callable[[int, int], bool] | None = None) -> None:
        """Compares collective k with those of other members that have posted it.

        fit: whether a call of the same kind by a rank fits ours, from (its rank, what it gave for its size).
        """
        own = self.calls
        for rank, at in self.compared.items():
            theirs = self._unlike(own, at, k)
            if theirs is not None and not (fit and theirs[1] == own.code and fit(rank, theirs[0])):
                raise collectives_unlike(self.keeper.publisher, (own.n_bytes, own.code, own.site), rank, theirs)

    def _unlike(self, own: Calls, at: int, k: int) -> tuple[int, int, int] | None:
        """(bytes, code, site) of call k at a place if it is unlike our last one."""
        board = self.keeper.publisher.board
        if board.q[at + POSTED] % ONE == own.mark and board.q[at + FIRST] <= k:
            return None  # its mark is ours since call k or longer
        theirs = board.call(at, k)
        return theirs if theirs is not None and theirs[:2] != (own.n_bytes, own.code) else None

    def be_known(self, yes: bool) -> None:
        """Whether torch's C++ code finds it by its name, which another group may have meanwhile."""
        if yes:
            c10d._register_process_group(self._name, self)
        else:
            c10d._unregister_process_group(self._name)

    def announce(self, op: str, size: int, frame, fit: Callable[[int, int], bool]) -> None:
        """Publishes a collective call that is not written down, and that the rank waits in it."""
        if not self.ranks:
            self.settle()
        keeper = self.keeper
        _, _, file, line = caller(frame, op)
        k = keeper.publisher.post(self.calls, size, CODES[op], keeper.site((op, file, line)))
        self.look_around(k, fit)
        keeper.d[keeper.header + SINCE] = perf_counter()
        keeper.q[keeper.header + K] = k
        keeper.q[keeper.header + WAIT] = self.calls.wait_word

    def recv_anysource(self, tensors, tag: int = 0):
        if not self.ranks:
            self.settle()
        op, _, file, line = caller(sys._getframe(1), "recv_anysource")
        keeper = self.keeper
        channel = self.open(ANY_PEER, tag, RECEIVE)
        own = (tensors[0].nbytes, DTYPE_CODES[tensors[0].dtype], keeper.site((op, file, line)))
        start = perf_counter()
        k = keeper.publisher.post(channel, *own)
        for rank in range(self._size):
            at = keeper.publisher.counterpart(self.ranks[rank], tag, self.slot, RECEIVE)
            known = self.channels.get((rank, tag, RECEIVE))
            self.compare(channel, RECEIVE, tag, self.ranks[rank], at, known.n if known else 0)
        work = self._inner.recv_anysource(tensors, tag)
        row = [own[2], ANY_PEER, own[0], start, start, tag, self.number, k, -1.0, -1.0, RECEIVE, 1, 0, 0]
        row += work, channel.wait_word
        keeper.rows.append(row)
        work = _any_source_class(self.MessageWork)((row, work))
        work.found = lambda src: self._received(src, tag, own, channel, row)
        return work

    def _received(self, src: int, tag: int, own: tuple[int, int, int], channel: Channel, row: list[Any]) -> None:
        """A receive from anybody is done: it has taken a message of `src`."""
        publisher = self.keeper.publisher
        row[PEER] = self.ranks[src]
        row[SEQ] = publisher.post(self.open(src, tag, RECEIVE), *own)
        publisher.q[channel.at - CALLS + DONE] += 1


@functools.cache
def _any_source_class(message_work: type):
    class AnySourceWork(message_work):
        """A receive from whoever sends: its peer is known once it is done."""

        def wait(self, timeout=None) -> bool:
            row, inner = self
            is_first = row[INNER] is inner
            done = super().wait(timeout)
            if is_first:
                self.found(inner._source_rank())
            return done

    return AnySourceWork


def _settling(name: str):
    """The class's method: C++ and Python callers find it before the group knows its members."""

    def call(self, *arguments, **named):
        self.settle()
        return getattr(self, name)(*arguments, **named)

    call.__name__ = name
    return call


for _name in COLLECTIVES:
    setattr(LedgerGroup, _name, _settling(_name))
