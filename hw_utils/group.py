"""A gloo process group that keeps the ledger: what `dist.send`, DDP and the rest call in a rank of `launch`.

torch builds it wherever it would have built gloo's own group (`install`), so that the student's code, the backend's
name and subgroups are as usual. Every call is written down as a row (see `ledger.py`), then handed to gloo.
"""

from __future__ import annotations

import sys
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from hw_utils import ledger
from hw_utils.ops import ALIASES, OBJECT_OPS, called_from_python, caller, sizes_of

_Gloo = c10d.ProcessGroupGloo
_COMPACT_ROWS = 1 << 16

# Places in a row, as in ledger.COLUMNS.
_END, _WAITED, _WAIT_START, _WAIT_END = (
    ledger.COLUMNS.index(c) for c in ("end_s", "waited", "wait_start_s", "wait_end_s")
)


class Keeper:
    """This process's ledger: the rows so far and their tables."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.begin()

    def begin(self) -> None:
        """Forgets what connecting the ranks has written."""
        self.rows: list[list[Any]] = []
        self.parts: list[dict] = []
        self.ops: dict[str, int] = {}
        self.files: dict[str, int] = {}
        self.groups: dict[tuple[int, ...] | None, int] = {None: 0}
        self.order = 0
        self.seqs: dict[tuple, int] = {}
        self.outer: tuple[Any, int] = (None, -1)  # the object collective under way: its frame, its first row

    def next_order(self) -> int:
        self.order += 1
        return self.order

    def next_seq(self, key: tuple) -> int:
        n = self.seqs.get(key, 0)
        self.seqs[key] = n + 1
        return n

    def add(self, row: list[Any]) -> None:
        self.rows.append(row)
        if len(self.rows) >= _COMPACT_ROWS:
            self._compact()

    def _compact(self, all_of_them: bool = False) -> None:
        """Rows that will not change any more become arrays."""
        done = self.rows if all_of_them else [r for r in self.rows if r[_WAITED] >= 0]
        self.rows = [] if all_of_them else [r for r in self.rows if r[_WAITED] < 0]
        numbered = [
            (self.ops.setdefault(r[0], len(self.ops)), *r[1:5], self.files.setdefault(r[5], len(self.files)), *r[6:])
            for r in done
        ]
        self.parts.append(ledger.columns_of(numbered))

    def finish(self) -> dict[str, Any]:
        """The ledger as `ledger.merge` takes it."""
        self._compact(all_of_them=True)
        return {
            "columns": ledger.join(self.parts),
            "ops": list(self.ops),
            "files": list(self.files),
            "groups": list(self.groups),
        }


class LedgerWork:
    """gloo's work, which writes down when it was waited for."""

    __slots__ = ("_inner", "_keeper", "_row")

    def __init__(self, inner: Any, row: list[Any], keeper: Keeper) -> None:
        self._inner, self._row, self._keeper = inner, row, keeper

    def wait(self, *timeout) -> bool:
        row = self._row
        if row[_WAITED] >= 0:
            return self._inner.wait(*timeout)
        order = self._keeper.next_order()
        start = perf_counter()
        done = self._inner.wait(*timeout)
        row[_END] = row[_WAIT_END] = perf_counter()
        row[_WAIT_START] = start
        row[_WAITED] = order
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class LedgerGroup(dist.ProcessGroup):
    """gloo, with every operation written down."""

    keeper: Keeper | None = None  # of this process

    def __init__(self, store, rank: int, size: int, timeout=None) -> None:
        super().__init__(rank, size)
        self._inner = _Gloo(store, rank, size, **({} if timeout is None else {"timeout": timeout}))
        # DDP's logger asks gloo for its number of threads.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._inner)
        self._rank, self._size = rank, size
        self._numbered: tuple[int, tuple[int, ...]] | None = None
        self.options = SimpleNamespace(global_ranks_in_group=[])

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

    @property
    def numbered(self) -> tuple[int, tuple[int, ...]]:
        """(number in the ledger's table, global ranks)."""
        if self._numbered is None:
            keeper = self.keeper
            ranks = tuple(self.options.global_ranks_in_group or range(self._size))
            known = None if ranks == tuple(range(keeper.world_size)) else ranks
            self._numbered = keeper.groups.setdefault(known, len(keeper.groups)), ranks
        return self._numbered

    def send(self, tensors, dst: int, tag: int = 0):
        return self._post("send", self._inner.send, tensors, dst, tag, 1)

    def recv(self, tensors, src: int, tag: int = 0):
        return self._post("recv", self._inner.recv, tensors, src, tag, 0)

    def _post(self, method: str, post, tensors, peer: int, tag: int, sends: int):
        frame = sys._getframe(2)
        op, outer, file, line = caller(frame, method)
        keeper = self.keeper
        number, ranks = self.numbered
        other, tensor = ranks[peer], tensors[0]
        n_bytes = tensor.numel() * tensor.element_size()
        start = perf_counter()
        work = post(tensors, peer, tag)
        row = [
            op, other, n_bytes, start, start, file, line, tag, number, 0, keeper.next_order(), -1, start, start, sends, 1, -1
        ]  # fmt: skip
        self._number(row, op, outer, (number, other, tag, sends))
        keeper.add(row)
        return LedgerWork(work, row, keeper) if called_from_python(frame) else _timed(work, row)

    def _number(self, row: list[Any], op: str, outer, key: tuple) -> None:
        """The place among the calls of its channel; a further part of an object collective belongs to the first."""
        keeper = self.keeper
        if op in OBJECT_OPS:
            if keeper.outer[0] is outer:
                row[16] = keeper.outer[1]
                row[9] = keeper.next_seq((key, "part"))
                row[7] = -1 - row[7]
                return
            keeper.outer = (outer, row[10])
        elif keeper.outer[0] is not None:
            keeper.outer = (None, -1)
        row[9] = keeper.next_seq(key)

    def recv_anysource(self, tensors, tag: int = 0):
        frame = sys._getframe(1)
        op, _, file, line = caller(frame, "recv_anysource")
        number, _ = self.numbered
        start = perf_counter()
        work = self._inner.recv_anysource(tensors, tag)
        order = self.keeper.next_order()
        row = [op, 0, sizes_of(tensors), start, start, file, line, tag, number, 0, order, -1, start, start, 0, 1, -1]
        self.keeper.add(row)
        return AnySourceWork(work, row, self)

    def _collect(self, method: str, measured, root: int, arguments: tuple, options: dict):
        frame = sys._getframe(2)
        op, outer, file, line = caller(frame, method)
        keeper = self.keeper
        number, _ = self.numbered
        n_bytes, itemsize = _measure(measured)
        order = keeper.next_order()
        start = perf_counter()
        work = getattr(self._inner, ALIASES.get(method, method))(*arguments, **options)
        row = [op, -1, n_bytes, start, start, file, line, 0, number, 0, order, -1, start, start, root, itemsize, -1]
        self._number(row, op, outer, (number,))
        keeper.add(row)
        if work is None or not hasattr(work, "wait"):
            row[_END], row[_WAITED], row[_WAIT_END] = perf_counter(), order, perf_counter()
            return work
        return LedgerWork(work, row, keeper) if called_from_python(frame) else _timed(work, row)


class AnySourceWork(LedgerWork):
    """A receive from whoever sends: its peer is known once it is done."""

    __slots__ = ("_group",)

    def __init__(self, inner: Any, row: list[Any], group: LedgerGroup) -> None:
        super().__init__(inner, row, group.keeper)
        self._group = group

    def wait(self, *timeout) -> bool:
        first = self._row[_WAITED] < 0
        done = super().wait(*timeout)
        if first:
            number, ranks = self._group.numbered
            row = self._row
            row[1] = ranks[self._inner._source_rank()]
            row[9] = self._keeper.next_seq((number, row[1], row[7], 0))
        return done


def _timed(work: Any, row: list[Any]) -> Any:
    """The work itself, for a C++ caller; its row learns the end from the work's future."""

    def note(_) -> None:
        row[_END] = perf_counter()

    work.get_future().add_done_callback(note)
    return work


def _measure(tensors) -> tuple[int, int]:
    """(bytes, bytes of one element) of tensors in lists."""
    first = tensors
    while isinstance(first, list | tuple):
        if not first:
            return 0, 1
        first = first[0]
    return sizes_of(tensors), first.element_size()


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


def _method(name: str, own: int | None):
    def call(self, *arguments, **options):
        measured = [] if own is None else arguments[own]
        given = options.get("opts") or (arguments[-1] if arguments else None)
        root = getattr(given, "rootRank", -1)
        return self._collect(name, measured, root, arguments, options)

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
    keeper = Keeper(rank, world_size)
    install(keeper)
    store = dist.FileStore(f"{spec['directory']}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return keeper
