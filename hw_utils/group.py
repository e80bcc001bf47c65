"""A gloo process group that keeps the ledger: what `dist.send`, DDP and the rest call in a rank of `launch`.

torch builds it wherever it would have built gloo's own group (`install`), so that the student's code, the backend's
name and subgroups are as usual. Every call is written down as a row (see `keeper.py`), published on the board, compared
with what the other side has published, then handed to gloo.
"""

from __future__ import annotations

import functools
import sys
import zlib
from collections.abc import Callable
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from hw_utils.board import (
    ANY_PEER,
    BLOCKED,
    CODE,
    COLLECTIVE,
    DONE,
    MAX_GROUPS,
    OVERFLOW,
    RECEIVE,
    RUNNING,
    SEND,
    SINCE,
    STATE,
    Board,
    Channel,
    K,
    Publisher,
)
from hw_utils.keeper import Keeper
from hw_utils.ops import DTYPE_CODES, caller
from hw_utils.recording import CODES, COLLECTIVES, collective, compared, point_to_point
from hw_utils.unlike import collectives_differ, messages_differ
from hw_utils.work import INNER, PEER, SEQ

_Gloo = c10d.ProcessGroupGloo


class LedgerGroup(dist.ProcessGroup):
    """gloo, with every operation written down."""

    keeper: Keeper | None = None  # of this process

    def __init__(self, store, rank: int, size: int, timeout=None) -> None:
        super().__init__(rank, size)
        self._inner = _Gloo(store, rank, size, **({} if timeout is None else {"timeout": timeout}))
        # DDP's logger asks gloo for its number of threads.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._inner)
        self._rank, self._size = rank, size
        self.options = SimpleNamespace(global_ranks_in_group=[])
        self.channels: dict[tuple[int, int, int], Channel] = {}  # (peer in the group, tag, direction)
        self.n_collectives = 0
        self.ranks: tuple[int, ...] = ()  # global; known when the group is first used

    def getBackendName(self) -> str:
        return "gloo"

    def _set_sequence_number_for_group(self) -> None:
        self._inner._set_sequence_number_for_group()

    @property
    def pg_name(self) -> str:
        return c10d._world.pg_names[self]

    @property
    def group_name(self) -> str:
        return self.pg_name

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    def settle(self) -> None:
        """Who is in it, its place in the ledger and on the board (the same on every rank), and its methods."""
        keeper = self.keeper
        publisher = keeper.publisher
        self.ranks = tuple(self.options.global_ranks_in_group or range(self._size))
        known = None if self.ranks == tuple(range(keeper.world_size)) else self.ranks
        name = self.pg_name  # the same on all members, and no other group's
        self.number = keeper.groups.setdefault((name, known), len(keeper.groups))
        self.slot = int(name) if name.isdigit() and int(name) < MAX_GROUPS else MAX_GROUPS
        if self.slot == MAX_GROUPS:
            publisher.q[publisher.header + OVERFLOW] = 1
        publisher.board.set_members(self.slot, self.ranks)
        self.compared = [self.ranks[i] for i in compared(self._rank, self._size)]
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

    def open(self, peer: int, tag: int, direction: int) -> Channel:
        """The channel with a peer of the group, new or known."""
        channel = self.channels.get((peer, tag, direction))
        if channel is None:
            other = ANY_PEER if peer == ANY_PEER else self.ranks[peer]
            channel = self.keeper.publisher.channel(other, tag, self.slot, direction)
            self.channels[peer, tag, direction] = channel
        return channel

    def find_other(self, channel: Channel, peer: int, tag: int, direction: int, own: tuple[int, int, int]) -> int:
        """Where the peer's end of the channel is, 0 if it has none yet; a send may meet a receive from anybody."""
        publisher, other = self.keeper.publisher, self.ranks[peer]
        channel.seen = publisher.q[channel.peer_count_at]
        channel.other_at = publisher.counterpart(other, tag, self.slot, direction)
        if not channel.other_at and direction == SEND:
            at, k = publisher.waiting_wildcard(other, tag, self.slot)
            if at:
                channel.seen = -1  # look again next time
                self.compare(SEND, other, own, at, k)
        return channel.other_at

    def compare(self, direction: int, other: int, own: tuple[int, int, int], at: int, k: int) -> None:
        theirs = self.keeper.publisher.board.posting(at, k) if at else None
        if theirs is not None and theirs[:2] != own[:2]:
            raise messages_differ(self.keeper.publisher, own, direction, other, theirs)

    def announce(self, op: str, size: int, frame) -> None:
        """Publishes a collective call that is not written down, and that the rank waits in it."""
        keeper = self.keeper
        publisher, q = keeper.publisher, keeper.q
        _, _, file, line = caller(frame, op)
        site = keeper.site((op, file, line))
        k = self.n_collectives
        self.n_collectives = k + 1
        first = publisher.layout.group_posting(self.slot, 0, k)
        at = first + keeper.rank * 4
        q[at] = 0  # until the rest is written, no other rank may read it
        q[at + 1], q[at + 2], q[at + 3] = CODES[op], size, site
        q[at] = k + 1
        q[publisher.layout.group_count(self.slot, keeper.rank)] = k + 1
        for rank in self.compared:
            theirs = tuple(q[first + rank * 4 : first + rank * 4 + 4])
            if theirs[0] == k + 1 and theirs[1:3] != (CODES[op], size):
                raise collectives_differ(publisher, (size, 0, site, -1), rank, (theirs[2], 0, theirs[3], -1))
        q[keeper.header + CODE], q[keeper.header + K] = COLLECTIVE + 4 * self.slot, k
        keeper.d[keeper.header + SINCE] = perf_counter()
        q[keeper.header + STATE] = BLOCKED

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
            self.compare(RECEIVE, self.ranks[rank], own, at, known.n if known else 0)
        work = self._inner.recv_anysource(tensors, tag)
        row = [own[2], ANY_PEER, own[0], start, start, tag, self.number, k, -1.0, -1.0, RECEIVE, 1, 0, 0]
        row = _any_source_class(keeper)((*row, work, channel.wait_code))
        row.found = lambda src: self._received(src, tag, own, channel, row)
        keeper.rows.append(row)
        return row

    def _received(self, src: int, tag: int, own: tuple[int, int, int], channel: Channel, row: list[Any]) -> None:
        """A receive from anybody is done: it has taken a message of `src`."""
        publisher = self.keeper.publisher
        row[PEER] = self.ranks[src]
        row[SEQ] = publisher.post(self.open(src, tag, RECEIVE), *own)
        publisher.q[channel.at + DONE] += 1


@functools.cache
def _any_source_class(keeper: Keeper):
    class AnySourceWork(keeper.Work):
        """A receive from whoever sends: its peer is known once it is done."""

        def wait(self, *timeout) -> bool:
            inner = self[INNER]
            done = super().wait(*timeout)
            if inner is not self[INNER]:  # the first wait
                self.source = inner._source_rank()
                self.found(self.source)
            return done

        def _source_rank(self) -> int:
            return self.source

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


def install(keeper: Keeper) -> None:
    """From now on torch builds a LedgerGroup where it would build gloo's."""
    LedgerGroup.keeper = keeper
    c10d.ProcessGroupGloo = LedgerGroup
    dist.new_group = c10d.new_group = _announced(c10d.new_group)


def _announced(new_group: Callable[..., Any]) -> Callable[..., Any]:
    """`new_group` is a collective call of all ranks too: published as one, though not written down."""

    @functools.wraps(new_group)
    def announced(ranks=None, *arguments, **named):
        world = c10d._get_default_group()
        if named.get("use_local_synchronization") or not isinstance(world, LedgerGroup):
            return new_group(ranks, *arguments, **named)
        world.announce("new_group", zlib.crc32(repr(ranks).encode()), sys._getframe(1))
        try:
            return new_group(ranks, *arguments, **named)
        finally:
            world.keeper.q[world.keeper.header + STATE] = RUNNING

    return announced


def connect(rank: int, spec: dict) -> Keeper:
    """Initialises the default process group of a rank over a file in the gang's private directory."""
    world_size = spec["world_size"]
    board = Board(f"{spec['directory']}/board", world_size)
    keeper = Keeper(rank, world_size, Publisher(board, rank))
    install(keeper)
    store = dist.FileStore(f"{spec['directory']}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    c10d._get_default_group().settle()
    return keeper
