"""A gloo process group that keeps the ledger: what `dist.send`, DDP and the rest call in a rank of `launch`.

torch builds it wherever it would have built gloo's own group (`install`), so that the student's code, the backend's
name and subgroups are as usual. Every call is written down as a row (see `keeper.py`), published on the board, compared
with what the other side has published, then handed to gloo.

All that may take 2 microseconds a call. Hence the two long functions `_point_to_point` and `_collective`: each makes
the method of one group, with all that it needs at hand.
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
    RAW,
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
from hw_utils.ops import ALIASES, DTYPE_CODES, ENTRIES, caller
from hw_utils.unlike import collectives_differ, messages_differ
from hw_utils.work import END, INNER, PEER, SEQ, START, WAIT_END, WAIT_START, note_end

_Gloo = c10d.ProcessGroupGloo
_TIMED_BYTES = 1 << 16  # from this size on an asynchronous collective's end is asked of gloo, which costs 5 us
_COMPACT_CALLS = 1 << 14


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
        self.number = keeper.groups.setdefault(known, len(keeper.groups))
        name = self.pg_name
        self.slot = int(name) if name.isdigit() and int(name) < MAX_GROUPS else MAX_GROUPS
        if self.slot == MAX_GROUPS:
            publisher.q[publisher.header + OVERFLOW] = 1
        publisher.board.set_members(self.slot, self.ranks)
        self.compared = [self.ranks[i] for i in _compared(self._rank, self._size)]
        self.send = _point_to_point(self, SEND)
        self.recv = _point_to_point(self, RECEIVE)
        for name, own in _COLLECTIVES.items():
            setattr(self, name, _collective(self, name, own))

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
                self._compare(SEND, other, own, at, k)
        return channel.other_at

    def _compare(self, direction: int, other: int, own: tuple[int, int, int], at: int, k: int) -> None:
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
        for i, value in enumerate((k + 1, _CODES[op], size, site)):
            q[first + keeper.rank * 4 + i] = value
        q[publisher.layout.group_count(self.slot, keeper.rank)] = k + 1
        for rank in self.compared:
            theirs = tuple(q[first + rank * 4 : first + rank * 4 + 4])
            if theirs[0] == k + 1 and theirs[1:3] != (_CODES[op], size):
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
            self._compare(RECEIVE, self.ranks[rank], own, at, known.n if known else 0)
        work = self._inner.recv_anysource(tensors, tag)
        row = [own[2], ANY_PEER, own[0], start, start, tag, self.number, k, -1.0, -1.0, RECEIVE, 1, 0]
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


def _compared(place: int, size: int) -> list[int]:
    """Whose calls a member compares with its own: all others of a small group, some of a large one."""
    if size <= 8:
        return [i for i in range(size) if i != place]
    return sorted({(place + sign * 2**i) % size for i in range(10) for sign in (1, -1)} - {place})


def _point_to_point(group: LedgerGroup, direction: int) -> Callable[..., Any]:
    keeper = group.keeper
    publisher, q, add = keeper.publisher, keeper.q, keeper.rows.append
    channels, ranks, number, getframe = {}, group.ranks, group.number, sys._getframe
    untagged: list[Channel | None] = [None] * len(ranks)
    hand_on = group._inner.send if direction == SEND else group._inner.recv
    method, Work = "send" if direction == SEND else "recv", keeper.Work
    blocking, n_frames = ENTRIES[method]
    blocking_depth = 2 + n_frames
    sites, blocking_sites = {}, {}  # (code, instruction) of a student's call -> site
    compact_calls = _COMPACT_CALLS
    layout_header, ring, posting = publisher.channel_header, publisher.ring, publisher.posting_size

    def post(tensors, peer, tag=0):
        # Above are isend and then either the student's frame or send's; asking for a frame costs 50 ns.
        frame = getframe(2)
        known = sites
        if frame.f_code is blocking:
            frame = getframe(blocking_depth)
            known = blocking_sites
        site = known.get((id(frame.f_code), frame.f_lasti))
        outer = True
        if site is None:
            site, outer = keeper.slow_site(getframe(1), method, frame, known)
        channel = untagged[peer] if tag == 0 else channels.get((peer, tag))
        if channel is None:
            channel = group.open(peer, tag, direction)
            if tag == 0:
                untagged[peer] = channel
            else:
                channels[peer, tag] = channel
        tensor = tensors[0]
        n_bytes = tensor.nbytes
        dtype = tensor.dtype
        if dtype is not channel.dtype:
            channel.dtype, channel.code = dtype, DTYPE_CODES[dtype]
        code = channel.code
        start = perf_counter()
        k = channel.n
        channel.n = k + 1
        at = channel.at
        entry = at + layout_header + k % ring * posting
        q[entry] = n_bytes
        q[entry + 1] = code
        q[entry + 2] = site
        q[at + 4] = k + 1  # POSTED: now others see it; then look at theirs, and whoever comes second sees a difference
        other = channel.other_at
        if not other and q[channel.peer_count_at] != channel.seen:
            other = group.find_other(channel, peer, tag, direction, (n_bytes, code, site))
        if other and q[other + 4] > k:
            entry = other + layout_header + k % ring * posting
            if (q[entry] != n_bytes or q[entry + 1] != code) and q[other + 4] <= k + ring:
                group._compare(direction, ranks[peer], (n_bytes, code, site), other, k)
        work = hand_on(tensors, peer, tag)
        row = Work((
            site, ranks[peer], n_bytes, start, start, tag, number, k, -1.0, -1.0, direction, 1, 0,
            work, channel.wait_code,
        ))  # fmt: skip
        add(row)
        if outer is not True:
            if outer is None:
                return work
            keeper.note_part(row, outer)
        if not k % compact_calls:
            keeper.compact()
        return row

    return post


def _collective(group: LedgerGroup, method: str, own: int | None) -> Callable[..., Any]:
    keeper = group.keeper
    publisher, q, add = keeper.publisher, keeper.q, keeper.rows.append
    me, number, getframe = publisher.rank, group.number, sys._getframe
    compared, slot, layout = group.compared, group.slot, publisher.layout
    hand_on = getattr(group._inner, ALIASES.get(method, method), None)
    entry_code, n_frames = ENTRIES.get(method, (None, 0))
    depth = 1 + n_frames
    Work, compact_calls = keeper.Work, _COMPACT_CALLS
    method_code = _CODES[method]
    any_size, is_rooted = method in _UNEVEN, method in _ROOTED
    codes = DTYPE_CODES
    count_at, first_at = layout.group_count(slot, me), layout.group_posting(slot, 0, 0)
    ring, row_size, wait_code = publisher.group_ring, layout.world_size * 4, COLLECTIVE + 4 * slot
    sites: dict[tuple[int, int], int] = {}

    def collect(*arguments, **named):
        frame = getframe(depth)
        site, outer = sites.get((id(frame.f_code), frame.f_lasti)), True
        if site is None:
            top = getframe(1)
            site, outer = keeper.slow_site(top, method, frame if top.f_code is entry_code else None, sites)
        if own is None:
            n_bytes, itemsize, code = 0, 1, 0
        else:
            tensor = arguments[own]
            if own == 0 and len(tensor) == 1:
                tensor = tensor[0]
                n_bytes, itemsize, code = tensor.nbytes, tensor.itemsize, codes[tensor.dtype]
            else:
                n_bytes, itemsize, code = _measure(tensor)
        root = (named.get("opts") or arguments[-1]).rootRank if is_rooted else -1
        start = perf_counter()
        k = group.n_collectives
        group.n_collectives = k + 1
        signature = method_code | code << 16 | root + 1
        size = -1 if any_size else n_bytes
        base = first_at + k % ring * row_size
        at = base + me * 4
        q[at] = k + 1
        q[at + 1] = signature
        q[at + 2] = size
        q[at + 3] = site
        q[count_at] = k + 1
        for rank in compared:
            at = base + rank * 4
            if q[at] == k + 1 and (q[at + 1] != signature or q[at + 2] != size):
                theirs = (q[at + 2], (q[at + 1] >> 16) & 0xFFFF, q[at + 3], (q[at + 1] & 0xFFFF) - 1)
                raise collectives_differ(publisher, (size, code, site, root), rank, theirs)
        work = hand_on(*arguments, **named)
        row = Work((
            site, -1, n_bytes, start, start, 0, number, k, -1.0, -1.0, root, itemsize, 0, work, wait_code
        ))  # fmt: skip
        add(row)
        if not k % compact_calls:
            keeper.compact()
        if outer is not True and outer is not None:
            keeper.note_part(row, outer)
        if work is None or outer is None:
            return _unseen(work, row, keeper)
        if n_bytes >= _TIMED_BYTES:
            note_end(work, row)
        return row

    return collect


def _unseen(work: Any, row: list[Any], keeper: Keeper) -> Any:
    """The work itself, for a C++ caller, which waits for it where we cannot see; None if it is over already."""
    if work is None:
        row[WAIT_START], row[END] = row[START], perf_counter()
        row[WAIT_END] = row[END]
    else:
        keeper.raw.append((work, row))
        keeper.q[keeper.header + RAW] += 1
        note_end(work, row)
    return work


def _measure(tensors) -> tuple[int, int, int]:
    """(bytes, bytes of one element, code of the dtype) of tensors in lists."""
    if type(tensors) is list and len(tensors) == 1:
        tensors = tensors[0]
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes, tensors.element_size(), DTYPE_CODES[tensors.dtype]
    if not tensors:
        return 0, 1, 0
    parts = [_measure(t) for t in tensors]
    return sum(p[0] for p in parts), parts[0][1], parts[0][2]


# method -> which argument is this rank's own data (None: there is none)
_COLLECTIVES = {
    "allreduce": 0, "allreduce_coalesced": 0, "broadcast": 0, "reduce": 0, "scatter": 0,
    "allgather": 1, "allgather_coalesced": 1, "_allgather_base": 1, "all_gather_single": 1,
    "allgather_into_tensor_coalesced": 1, "all_gather_single_coalesced": 1, "gather": 1,
    "reduce_scatter": 1, "_reduce_scatter_base": 1, "reduce_scatter_single": 1,
    "reduce_scatter_tensor_coalesced": 1, "reduce_scatter_single_coalesced": 1,
    "alltoall": 1, "alltoall_base": 1, "all_to_all_single": 1,
    "barrier": None, "monitored_barrier": None,
}  # fmt: skip
_CODES = {name: i << 32 for i, name in enumerate([*_COLLECTIVES, "new_group"], 1)}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_UNEVEN = {"alltoall", "alltoall_base", "all_to_all_single"}  # each pair of ranks may exchange another size


def _settling(name: str):
    """The class's method: C++ and Python callers find it before the group knows its members."""

    def call(self, *arguments, **named):
        self.settle()
        return getattr(self, name)(*arguments, **named)

    call.__name__ = name
    return call


for _name in _COLLECTIVES:
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
