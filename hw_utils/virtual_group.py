"""torch.distributed's process group of one virtual rank, and its bookkeeping that follows the running rank."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils import collectives
from hw_utils.schedules import ALGORITHM

OPS = frozenset(ALGORITHM) | {
    "send", "recv", "isend", "irecv", "send_object_list", "recv_object_list", "new_group", "gather_object",
}  # fmt: skip
_LIBRARY = c10d.__file__


class World:
    """What distributed_c10d keeps about groups, for one rank."""

    def __init__(self) -> None:
        self.default_pg = None
        self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config = {}, {}, {}, {}
        self.tags_to_pg, self.pg_to_tag, self.pg_coalesce_state = {}, {}, {}
        self.comms: list = []
        self.group_count = 0
        self.pg_config_info: list = []

    def add(self, group: VirtualGroup, ranks: dict[int, int], store) -> None:
        self.pg_map[group] = ("gloo", store)
        self.pg_names[group] = group.name
        self.pg_group_ranks[group] = ranks
        self.pg_backend_config[group] = "cpu:gloo"
        tag = f"ptd:{group.name}"
        self.tags_to_pg.setdefault("", []).append(group)
        self.tags_to_pg.setdefault(tag, []).append(group)
        self.pg_to_tag[group] = tag


class CurrentWorld:
    """Stands where distributed_c10d keeps its one world: every access goes to the running rank's."""

    def __init__(self, engine) -> None:
        object.__setattr__(self, "_engine", engine)
        object.__setattr__(self, "_worlds", {})

    def _current(self) -> World:
        rank = self._engine.rank
        world = self._worlds.get(rank)
        if world is None:
            world = self._worlds[rank] = World()
        return world

    def __getattr__(self, name: str):
        return getattr(self._current(), name)

    def __setattr__(self, name: str, value) -> None:
        setattr(self._current(), name, value)


class Members:
    """A group that all its ranks share: who is in it, and the collectives they have called."""

    def __init__(self, engine, number: int, ranks: tuple[int, ...]) -> None:
        self.engine, self.number, self.ranks = engine, number, ranks
        self.place_of = {rank: i for i, rank in enumerate(ranks)}
        self.n_called = [0] * len(ranks)
        self.calls: dict[int, collectives.Call] = {}


class VirtualGroup(dist.ProcessGroup):
    """One rank's view of a group."""

    def __init__(self, members: Members, rank: int, name: str) -> None:
        place = members.place_of[rank]
        super().__init__(place, len(members.ranks))
        self.members, self.place, self.name = members, place, name
        self.engine = members.engine
        self.is_registered = False

    def getBackendName(self) -> str:
        return "gloo"

    def size(self) -> int:
        return len(self.members.ranks)

    def rank(self) -> int:
        return self.place

    getSize, getRank = size, rank

    @property
    def group_name(self) -> str:
        if not self.is_registered:  # C++ code looks groups up by name
            self.is_registered = True
            torch._C._distributed_c10d._register_process_group(self.name, self)
        return self.name

    pg_name = group_name

    @property
    def group_desc(self) -> str:
        return "default_pg" if self.members.number == 0 else "undefined"

    @property
    def bound_device_id(self) -> None:
        return None

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def shutdown(self) -> None: ...
    def abort(self) -> None: ...

    # -- point to point: what does not go through point_to_point.py's short cut

    def _post(self, tensors, peer: int, tag: int, is_send: bool):
        _require_dense(tensors)
        engine, me = self.engine, self.engine.rank
        other = self.members.ranks[peer] if peer >= 0 else -1
        name, place = engine.places.calling(OPS, _LIBRARY)
        src, dst = (me, other) if is_send else (other, me)
        if name in ("send_object_list", "recv_object_list"):
            name = name.split("_")[0]
        is_blocking = name in ("send", "recv")
        op = engine.op(name or ("isend" if is_send else "irecv"))
        request = engine.post(is_send, op, tensors[0], other, tag, self.members.number, place, src, dst, is_blocking)
        return request.outside(self.members, is_blocking)

    def send(self, tensors, dst: int, tag: int = 0):
        return self._post(tensors, dst, tag, True)

    def recv(self, tensors, src: int, tag: int = 0):
        return self._post(tensors, src, tag, False)

    def recv_anysource(self, tensors, tag: int = 0):
        return self._post(tensors, -1, tag, False)

    # -- collectives

    def _call(self, kind: str, inputs, outputs, root: int = 0, reduce_op=None, **details):
        for tensors in (inputs, outputs):
            _require_dense(tensors)
        name, place = self.engine.places.calling(OPS, _LIBRARY)
        return collectives.call(self, name or kind, place, kind, inputs, outputs, root, reduce_op, details)

    def allreduce(self, tensors, opts=None, timeout=None):
        op = getattr(opts, "reduceOp", opts)
        return self._call("all_reduce", tensors, tensors, reduce_op=op)

    def allreduce_coalesced(self, tensors, opts=None):
        return self._call("all_reduce", tensors, tensors, reduce_op=opts.reduceOp)

    def broadcast(self, tensors, opts=None, timeout=None):
        return self._call("broadcast", tensors, tensors, opts.rootRank if hasattr(opts, "rootRank") else opts or 0)

    def barrier(self, opts=None, timeout=None):
        return self._call("barrier", [], [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False):
        self._call("barrier", [], []).wait()


def _require_dense(tensors) -> None:
    for tensor in tensors:
        if tensor.is_sparse or not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")


@contextmanager
def installed_groups(engine):
    """`dist.new_group` and what builds on it make groups of virtual ranks."""
    yield
