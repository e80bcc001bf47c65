"""The process group that C++ and DistributedDataParallel find in an answer's process: its calls are made elsewhere.

torch's reducer asks a group for collectives and waits for them itself: by their works, or in a backward pass by futures
of these, which are filled as those of virtual ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from hw_utils.virtual.groups.group import VirtualGroup
from hw_utils.virtual.groups.world import World, add_to_world

_KINDS = {  # what a group's method is called in torch.distributed, from its inputs, outputs, root and reduction
    "all_reduce": lambda i, o, root, op: ((i[0], op), {}),
    "broadcast": lambda i, o, root, op: ((i[0], root), {}),
    "all_gather": lambda i, o, root, op: ((o, i[0]), {}),
    "reduce": lambda i, o, root, op: ((i[0], root, op), {}),
    "gather": lambda i, o, root, op: ((i[0], o or None, root), {}),
    "scatter": lambda i, o, root, op: ((o[0], i or None, root), {}),
    "reduce_scatter": lambda i, o, root, op: ((o[0], i, op), {}),
    "barrier": lambda i, o, root, op: ((), {}),
}


class FarGroup(VirtualGroup):
    """All ranks, as one of them sees them."""

    backend = "Gloo"  # whose rules hold: no check runs on virtual devices

    def __init__(self, rank: int, world_size: int) -> None:
        dist.ProcessGroup.__init__(self, rank, world_size)
        self.place, self.n_ranks, self.registered_as = rank, world_size, f"answer's {id(self)}"
        self.is_registered, self.engine = False, _NoEngine(world_size)

    def size(self) -> int:
        return self.n_ranks

    getSize = size

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        dist.monitored_barrier(timeout=timeout, wait_all_ranks=wait_all_ranks)

    @property
    def group_desc(self) -> str:
        return "default_pg"

    def _call(
        self, method: str, kind: str, inputs: Any, outputs: Any, n_bytes: int, root: int = 0, reduce_op=None, **_: Any
    ):  # what a profile or a time limit would want stays on the other side
        if kind not in _KINDS:
            raise RuntimeError(f"{method} does not cross to another process; torch.distributed.{kind} does")
        args, options = _KINDS[kind](list(inputs), list(outputs), root, reduce_op)
        return getattr(dist, kind)(*args, **options, async_op=True)

    def _post(self, method: str, *arguments: Any):
        raise RuntimeError(f"{method} of a group does not cross to another process; torch.distributed's does")


class _NoEngine:
    """In the place of a run's: the names under which C++ code finds groups, as functional collectives do, stay."""

    class ending:
        may_go_apart = False

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("this does not cross to another process; torch.distributed's functions do")


class Worlds:
    """Stands where distributed_c10d keeps its one world: a call of a rank's sees a world of its own."""

    def __init__(self, real: Any, here: Callable[[], tuple[str, list] | None]) -> None:
        """here: (name, [rank, world size]) of the calling thread's rank, None if it serves none."""
        object.__setattr__(self, "_kept", (real, here, {}))

    def _current(self) -> Any:
        real, here, worlds = self._kept
        called = here()
        if called is None:
            return real
        name, (rank, world_size) = called
        if name not in worlds:
            worlds[name], group = World(), FarGroup(rank, world_size)
            add_to_world(group, {r: r for r in range(world_size)}, None)
            worlds[name].default_pg = group
        return worlds[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._current(), name, value)
