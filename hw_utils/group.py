"""A gloo process group that keeps the ledger: what `dist.send`, DDP and the rest call in a rank of `launch`.

torch builds it wherever it would have built gloo's own group (`install`), so that the student's code, the backend's
name and subgroups are as usual. Every call is written down as a row (see `keeper.py`), published on the board, compared
with what the other side has published, then handed to gloo. That takes about 2 microseconds; hence the plain code.
"""

from __future__ import annotations

import sys
import threading
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from hw_utils.board import (
    ANY_PEER,
    BLOCKED,
    COLLECTIVE,
    DONE,
    MAX_GROUPS,
    MAY_MOVE,
    OVERFLOW,
    POSTED,
    RAW,
    RECEIVE,
    RUNNING,
    SEND,
    Board,
    Channel,
    Publisher,
)  # fmt: skip
from hw_utils.keeper import COMPACT_ROWS, END, PEER, SEQ, START, WAIT_END, WAIT_START, WAITED, Keeper
from hw_utils.ops import ALIASES, DTYPE_CODES, caller, sizes_of
from hw_utils.unlike import collectives_differ, messages_differ

_Gloo = c10d.ProcessGroupGloo
_TIMED_BYTES = 1 << 16  # from this size on an asynchronous collective's end is asked of gloo, which costs 5 us
_threads = threading._active  # its length is the number of Python threads, at 40 ns


class LedgerWork:
    """gloo's work, which writes down when it was waited for, and publishes what the rank waits for."""

    __slots__ = ("_code", "_inner", "_k", "_keeper", "_row")

    def __init__(self, inner: Any, row: list[Any], keeper: Keeper, code: int, k: int) -> None:
        self._inner, self._row, self._keeper, self._code, self._k = inner, row, keeper, code, k

    def wait(self, *timeout) -> bool:
        row, keeper = self._row, self._keeper
        if row[WAITED] >= 0:
            return self._inner.wait(*timeout)
        keeper.order = order = keeper.order + 1
        q, header = keeper.q, keeper.header
        start = perf_counter()
        q[header + 1] = self._code
        q[header + 2] = self._k
        keeper.d[header + 3] = start
        q[header] = BLOCKED if len(_threads) == 1 and not timeout else _state(timeout)
        try:
            done = self._inner.wait(*timeout)
        finally:
            q[header] = RUNNING
        row[WAIT_END] = end = perf_counter()
        row[WAIT_START] = start
        if row[END] == row[START]:
            row[END] = end
        row[WAITED] = order
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _state(timeout: tuple) -> int:
    """Whether a rank that waits is blocked for good: not if another of its threads may post, or if it gives up."""
    others = [t for t in threading.enumerate() if type(t).__name__ != "TMonitor"]  # tqdm's posts nothing
    return MAY_MOVE if timeout or len(others) > 1 else BLOCKED


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
        self._channels: dict[tuple[int, int, int], Channel] = {}
        self._n_collectives = 0
        self.ranks: tuple[int, ...] = ()  # global; known once the group is in use
        self.slot = 0  # on the board

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

    def _settle(self) -> None:
        """Who is in it, and its place in the ledger and on the board: the same on every rank."""
        keeper = self.keeper
        self.ranks = tuple(self.options.global_ranks_in_group or range(self._size))
        known = None if self.ranks == tuple(range(keeper.world_size)) else self.ranks
        self.number = keeper.groups.setdefault(known, len(keeper.groups))
        name = self.pg_name
        self.slot = int(name) if name.isdigit() else MAX_GROUPS
        publisher = keeper.publisher
        if self.slot >= MAX_GROUPS:
            publisher.q[publisher.header + OVERFLOW] = 1
            self._count_at = 0
            return
        publisher.board.set_members(self.slot, self.ranks)
        self._count_at = publisher.layout.group_count(self.slot, keeper.rank)
        near = {(self._rank + shift * 2**i) % self._size for i in range(10) for shift in (1, -1)}
        compared = range(self._size) if self._size <= 8 else sorted(near)
        self.compared = [self.ranks[i] for i in compared if i != self._rank]

    def send(self, tensors, dst: int, tag: int = 0):
        op, outer, file, line = caller(sys._getframe(1), "send")
        keeper = self.keeper
        site = keeper.site((op, file, line))
        channel = self._channels.get((dst, tag, SEND)) or self._open(dst, tag, SEND)
        tensor = tensors[0]
        n_bytes = tensor.numel() * tensor.element_size()
        start = perf_counter()
        k = self._publish(channel, dst, tag, SEND, n_bytes, tensor.dtype, site)
        work = self._inner.send(tensors, dst, tag)
        return self._written(work, outer, site, channel, k, self.ranks[dst], n_bytes, start, tag, SEND)

    def recv(self, tensors, src: int, tag: int = 0):
        op, outer, file, line = caller(sys._getframe(1), "recv")
        keeper = self.keeper
        site = keeper.site((op, file, line))
        channel = self._channels.get((src, tag, RECEIVE)) or self._open(src, tag, RECEIVE)
        tensor = tensors[0]
        n_bytes = tensor.numel() * tensor.element_size()
        start = perf_counter()
        k = self._publish(channel, src, tag, RECEIVE, n_bytes, tensor.dtype, site)
        work = self._inner.recv(tensors, src, tag)
        return self._written(work, outer, site, channel, k, self.ranks[src], n_bytes, start, tag, RECEIVE)

    def _open(self, peer: int, tag: int, direction: int) -> Channel:
        if not self.ranks:
            self._settle()
        other = ANY_PEER if peer == ANY_PEER else self.ranks[peer]
        channel = self.keeper.publisher.channel(other, tag, self.slot, direction)
        self._channels[peer, tag, direction] = channel
        return channel

    def _publish(self, channel: Channel, peer: int, tag: int, direction: int, n_bytes: int, dtype, site: int) -> int:
        """Posts on the board, then looks at the other end: whoever comes second sees that the two differ."""
        publisher = self.keeper.publisher
        code = DTYPE_CODES[dtype]
        k = publisher.post(channel, n_bytes, code, site)
        at = channel.other_at
        if not at:
            other = self.ranks[peer]
            at = channel.other_at = publisher.counterpart(other, tag, self.slot, direction)
            if not at:
                if direction == SEND:
                    self._compare_with_wildcard(other, tag, n_bytes, code, site)
                return k
        if publisher.q[at + POSTED] > k:
            theirs = publisher.board.posting(at, k)
            if theirs is not None and theirs[:2] != (n_bytes, code):
                raise messages_differ(publisher, (n_bytes, code, site), direction, self.ranks[peer], theirs)
        return k

    def _compare_with_wildcard(self, other: int, tag: int, n_bytes: int, code: int, site: int) -> None:
        publisher = self.keeper.publisher
        at = publisher.wildcard(other, tag, self.slot)
        if at and publisher.q[at + POSTED] > publisher.q[at + DONE]:
            theirs = publisher.board.posting(at, publisher.q[at + DONE])
            if theirs is not None and theirs[:2] != (n_bytes, code):
                raise messages_differ(publisher, (n_bytes, code, site), SEND, other, theirs)

    def _written(self, work, outer, site, channel, k, peer, n_bytes, start, tag, direction):
        keeper = self.keeper
        keeper.order = order = keeper.order + 1
        row = [site, peer, n_bytes, start, start, tag, self.number, k, order, -1, start, start, direction, 1, -1]
        if site in keeper.object_sites or keeper.outer[0] is not None:
            keeper.number(row, outer, (self.number, peer, tag, direction, "objects"))
            row[SEQ] = k
        rows = keeper.rows
        rows.append(row)
        if len(rows) >= COMPACT_ROWS:
            keeper.compact()
        return LedgerWork(work, row, keeper, direction + 4 * channel.index, k) if outer is not None else work

    def recv_anysource(self, tensors, tag: int = 0):
        op, _, file, line = caller(sys._getframe(1), "recv_anysource")
        keeper = self.keeper
        publisher = keeper.publisher
        site = keeper.site((op, file, line))
        channel = self._channels.get((ANY_PEER, tag, RECEIVE)) or self._open(ANY_PEER, tag, RECEIVE)
        n_bytes, code = sizes_of(tensors), DTYPE_CODES[tensors[0].dtype]
        start = perf_counter()
        k = publisher.post(channel, n_bytes, code, site)
        for rank in range(self._size):
            at = publisher.counterpart(self.ranks[rank], tag, self.slot, RECEIVE)
            mine = self._channels.get((rank, tag, RECEIVE))
            theirs = publisher.board.posting(at, mine.n if mine else 0) if at else None
            if theirs is not None and theirs[:2] != (n_bytes, code):
                raise messages_differ(publisher, (n_bytes, code, site), RECEIVE, self.ranks[rank], theirs)
        work = self._inner.recv_anysource(tensors, tag)
        keeper.order = order = keeper.order + 1
        row = [site, 0, n_bytes, start, start, tag, self.number, -1 - order, order, -1, start, start, RECEIVE, 1, -1]
        keeper.rows.append(row)
        return AnySourceWork(work, row, channel, k, self, (n_bytes, code, site, tag))

    def _collect(self, method: str, own, options, arguments: tuple, named: dict):
        op, outer, file, line = caller(sys._getframe(2), method)
        keeper = self.keeper
        if not self.ranks:
            self._settle()
        site = keeper.site((op, file, line))
        n_bytes, itemsize, code = _measure(own)
        root = getattr(options, "rootRank", -1)
        keeper.order = order = keeper.order + 1
        start = perf_counter()
        k = self._publish_collective(method, site, n_bytes, code, root)
        row = [site, -1, n_bytes, start, start, 0, self.number, 0, order, -1, start, start, root, itemsize, -1]
        keeper.number(row, outer, (self.number,))
        keeper.rows.append(row)
        work = getattr(self._inner, ALIASES.get(method, method))(*arguments, **named)
        if work is None or not hasattr(work, "wait"):
            row[END], row[WAITED], row[WAIT_END] = perf_counter(), order, perf_counter()
            return work
        if outer is None:
            return _timed(work, row, keeper)
        if n_bytes >= _TIMED_BYTES:
            _note_end(work, row)
        return LedgerWork(work, row, keeper, COLLECTIVE + 4 * self.slot, k)

    def _publish_collective(self, method: str, site: int, n_bytes: int, code: int, root: int) -> int:
        """Posts the group's k-th collective; raises if a member's k-th is another one."""
        publisher = self.keeper.publisher
        k = self._n_collectives
        self._n_collectives = k + 1
        if not self._count_at:
            return k
        q, layout = publisher.q, publisher.layout
        signature = (_CODES[method] << 32) | (code << 16) | (root + 1)
        compared_bytes = -1 if method in _UNEVEN else n_bytes
        at = layout.group_posting(self.slot, publisher.rank, k)
        q[at] = k + 1
        q[at + 1] = signature
        q[at + 2] = compared_bytes
        q[at + 3] = site
        q[self._count_at] = k + 1
        offset = at - publisher.rank * 4
        for rank in self.compared:
            other = offset + rank * 4
            if q[other] == k + 1 and (q[other + 1] != signature or q[other + 2] != compared_bytes):
                theirs = (q[other + 2], (q[other + 1] >> 16) & 0xFFFF, q[other + 3], (q[other + 1] & 0xFFFF) - 1)
                raise collectives_differ(publisher, (compared_bytes, code, site, root), rank, theirs)
        return k


class AnySourceWork(LedgerWork):
    """A receive from whoever sends: its peer is known once it is done."""

    __slots__ = ("_channel", "_group", "_posting")

    def __init__(self, inner, row, channel: Channel, k: int, group: LedgerGroup, posting: tuple) -> None:
        super().__init__(inner, row, group.keeper, RECEIVE + 4 * channel.index, k)
        self._channel, self._group, self._posting = channel, group, posting

    def wait(self, *timeout) -> bool:
        if self._row[WAITED] >= 0:
            return self._inner.wait(*timeout)
        done = super().wait(*timeout)
        group, publisher = self._group, self._keeper.publisher
        n_bytes, code, site, tag = self._posting
        src = self._inner._source_rank()
        channel = group._channels.get((src, tag, RECEIVE)) or group._open(src, tag, RECEIVE)
        self._row[PEER] = group.ranks[src]
        self._row[SEQ] = publisher.post(channel, n_bytes, code, site)
        if self._channel.index >= 0:
            publisher.q[self._channel.at + DONE] += 1
        return done


def _timed(work: Any, row: list[Any], keeper: Keeper) -> Any:
    """The work itself, for a C++ caller, which waits for it where we cannot see."""
    keeper.raw.append((work, row))
    keeper.q[keeper.header + RAW] += 1
    _note_end(work, row)
    return work


def _note_end(work: Any, row: list[Any]) -> None:
    def note(_) -> None:
        row[END] = perf_counter()

    work.get_future().add_done_callback(note)


def _measure(tensors) -> tuple[int, int, int]:
    """(bytes, bytes of one element, code of the dtype) of tensors in lists."""
    first = tensors
    while isinstance(first, list | tuple):
        if not first:
            return 0, 1, 0
        first = first[0]
    return sizes_of(tensors), first.element_size(), DTYPE_CODES[first.dtype]


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
_CODES = {name: i for i, name in enumerate([*_COLLECTIVES, "new_group"], 1)}
_UNEVEN = {"alltoall", "alltoall_base", "all_to_all_single"}  # each pair of ranks may exchange another size


def _method(name: str, own: int | None):
    def call(self, *arguments, **named):
        options = named.get("opts") or (arguments[-1] if arguments else None)
        return self._collect(name, [] if own is None else arguments[own], options, arguments, named)

    call.__name__ = name
    return call


for _name, _own in _COLLECTIVES.items():
    setattr(LedgerGroup, _name, _method(_name, _own))


def install(keeper: Keeper) -> None:
    """From now on torch builds a LedgerGroup where it would build gloo's."""
    LedgerGroup.keeper = keeper
    c10d.ProcessGroupGloo = LedgerGroup


def connect(rank: int, spec: dict) -> Keeper:
    """Initialises the default process group of a rank over a file in the gang's private directory."""
    world_size = spec["world_size"]
    board = Board(f"{spec['directory']}/board", world_size)
    keeper = Keeper(rank, world_size, Publisher(board, rank))
    install(keeper)
    store = dist.FileStore(f"{spec['directory']}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    dist.distributed_c10d._get_default_group()._settle()
    return keeper
