"""What torch.distributed keeps about groups, of each virtual rank."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed import distributed_c10d as c10d

_TORCHS = c10d._world
_OF_GLOO = str(c10d.BackendConfig(c10d.Backend("gloo")))  # "cpu:gloo,cuda:gloo"


class World:
    """What distributed_c10d keeps about groups, for one rank."""

    def __init__(self) -> None:
        self.default_pg = None
        self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config = {}, {}, {}, {}
        self.tags_to_pg, self.pg_to_tag, self.pg_coalesce_state = {}, {}, {}
        self.comms: list = []
        self.group_count = 0
        self.pg_config_info: list = []

    def __getattr__(self, name: str):
        """What only some versions of torch keep about groups: empty, as before the first group."""
        theirs = getattr(_TORCHS, name)
        if not isinstance(theirs, (dict, list, set)):
            return theirs
        setattr(self, name, type(theirs)())
        return getattr(self, name)


def add_to_world(group, ranks: dict[int, int], store, tag: str | None = None):
    """Enters a group in the running rank's books, as torch.distributed does; gives the books. tag: the program's."""
    world, own = c10d._world, f"ptd:{group.registered_as}"
    world = world.current() if isinstance(world, CurrentWorld) else world
    world.pg_map[group] = ("gloo", store)
    world.pg_names[group] = group.registered_as
    world.pg_group_ranks[group] = ranks
    world.pg_backend_config[group] = _OF_GLOO
    tags = [f"user:{tag}"] if tag else [own, ""]
    for name in tags:
        world.tags_to_pg.setdefault(name, []).append(group)
    world.pg_to_tag[group] = tags[0]
    return world


class CurrentWorld:
    """Stands where distributed_c10d keeps its one world: every access goes to the running rank's."""

    def __init__(self, engine) -> None:
        object.__setattr__(self, "_engine", engine)
        object.__setattr__(self, "_worlds", {})

    def current(self):
        """The running rank's; torch's own for threads that carry none."""
        if not self._engine.threads.carries():
            return _TORCHS
        rank = self._engine.rank
        world = self._worlds.get(rank)
        if world is None:
            world = self._worlds[rank] = World()
        return world

    def __getattr__(self, name: str):
        return getattr(self.current(), name)

    def __setattr__(self, name: str, value) -> None:
        setattr(self.current(), name, value)


def inherited_after(undo: Callable[[], None]) -> Callable[[], None]:
    """`undo` for a process that a rank has forked: it knows the rank's groups and its place in them, as a fork does.

    A DataLoader's worker asks for them to take its part of the data. It cannot communicate.
    """

    def leave() -> None:
        world = c10d._world
        world = world.current() if isinstance(world, CurrentWorld) else world
        undo()
        c10d._world = world
        for group in list(world.pg_map):
            if hasattr(group, "engine"):
                group.engine = _Elsewhere()

    return leave


class _Elsewhere:
    """What a group of a child has for its engine."""

    def __getattr__(self, name: str):
        raise RuntimeError(
            "a process that a rank has forked communicates: only the rank itself can reach the others. "
            "Next step: hand what the process has found to the rank, by a queue or as its result"
        )
