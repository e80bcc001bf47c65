"""`init_process_group` in a rank whose default group is there already: the program's first call takes that one.

A program written for torchrun calls `init_process_group("nccl")` itself. The engines have connected their ranks before
the first line runs, so the call finds the group that it asks for; after `destroy_process_group` it makes a new one.

    with installed(find):          # find() gives the running rank's `Lent`
        ...                        # torch.distributed.init_process_group asks it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

_HOLDERS = (dist, c10d, device_mesh)  # the modules that have it by name


class Lent:
    """One rank's default group: who may take it, and how a new one is made once it was destroyed."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        make: Callable[..., None],
        make_of_some: Callable[..., None],
        has_nccl: bool = False,
        split: Callable | None = None,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.make = make  # called with timeout and store
        self.make_of_some = make_of_some  # called with store, rank, world size and timeout
        self.split = split  # called with a group whose objects have a backend of their own
        self.has_nccl = has_nccl  # beside gloo: where their devices are virtual
        self.group: dist.ProcessGroup | None = None  # kept back until the program asks for it
        self.is_free = True  # nobody has asked yet
        self.is_scripts, self.pid = False, os.getpid()
        self.entries: list[tuple[dict, Any]] = []  # of torch's books, which do not have a group that was set aside
        self.n_stores, self.servers = 0, []  # which torchrun's own process would keep: other ranks may come late
        self.n_started = 0  # processes that the script would have started, of which each is a rank's

    def keep_back(self) -> None:
        """Until `init_process_group` is called there is no default group, as in a fresh process of torchrun."""
        self.group, self.is_scripts = c10d.GroupMember.WORLD, True
        c10d._update_default_pg(None)

    def join(
        self, backend: Any, init_method: str | None, timeout: timedelta | None, world_size: int, rank: int, store: Any
    ) -> None:
        """What a call of `init_process_group` does.

        A rank that says another number, or another world size, means a group of those that meet by its `init_method`
        or store: of some ranks only, or of all in another order.

        Raises:
            ValueError: it is called twice, or asks for a world that the run's ranks cannot make.
            RuntimeError: by a process that the rank has forked.
        """
        if os.getpid() != self.pid:
            raise RuntimeError(
                f"init_process_group in a process that rank {self.rank} has forked: the ranks of a run are its own "
                "processes, one each. Next step: call it in the rank itself, or start the script's ranks with "
                "mp.spawn(function, nprocs=world_size), whose processes the ranks play"
            )
        query = parse_qs(urlparse(init_method or "").query)
        rank, world_size = (
            int(query.get(name, [-1])[0]) if asked in (-1, None) else asked
            for name, asked in (("rank", rank), ("world_size", world_size))
        )
        given = {"rank": (rank, self.rank), "world_size": (world_size, self.world_size)}
        others = {name: asked for name, (asked, own) in given.items() if asked not in (-1, own)}
        is_of_some = others and 0 <= rank < world_size <= self.world_size and (init_method or store)
        for name, asked in others.items():
            if not is_of_some:
                raise ValueError(
                    f"init_process_group({name}={asked}) in rank {self.rank} of {self.world_size}: the ranks of a run "
                    f"are fixed, see --ranks. Leave {name} out, or make a smaller group with dist.new_group, or by "
                    "rank=, world_size= and an init_method= or store= by which its ranks meet"
                )
        if not self.is_free and c10d.GroupMember.WORLD is not None:
            raise ValueError("trying to initialize the default process group twice!")
        if timeout is not None:
            c10d._check_valid_timeout(timeout)
        asked = str(backend or dist.Backend.UNDEFINED).lower()
        self._say(asked)
        if is_of_some:
            self.step_aside()
            self._meet(init_method, timeout, world_size, rank, store)
        elif self.group is not None:
            self._put_back()
        elif c10d.GroupMember.WORLD is None:
            self.make(timeout=timeout, store=store)
        if timeout is not None:
            c10d.GroupMember.WORLD._set_default_timeout(timeout)
        if not is_of_some:
            self._lend_store(init_method, timeout, store)
        self.name_backend(c10d.GroupMember.WORLD, asked)
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:  # which the program may have set since it was made
            c10d.GroupMember.WORLD.compare_calls()
        self.is_free = False
        if not is_of_some:
            self.group = None

    def _meet(self, init_method: str | None, timeout: timedelta | None, world_size: int, rank: int, store: Any) -> None:
        """A default group of those that meet where the program says."""
        timeout = timeout or c10d.default_pg_timeout
        if store is None:
            store, rank, world_size = next(iter(dist.rendezvous(init_method, rank, world_size, timeout=timeout)))
            store.set_timeout(timeout)
        self.make_of_some(dist.PrefixStore("default_pg", store), rank, world_size, timeout)

    def _lend_store(self, init_method: str | None, timeout: timedelta | None, store: Any) -> None:
        """The group's store is of the kind that the program has asked for, wherever `init_method` would have it."""
        backend, ours = c10d._world.pg_map[c10d.GroupMember.WORLD]
        query = parse_qs(urlparse(init_method or "env://").query)
        if store is None and not (init_method or "").startswith("file:"):
            is_uv = query.get("use_libuv", [os.environ.get("USE_LIBUV", "1")])[0] == "1"
            store = self._tcp_store(ours, timeout or c10d.default_pg_timeout, is_uv)
        if timeout is not None:
            (store or ours).set_timeout(timeout)
        c10d._world.pg_map[c10d.GroupMember.WORLD] = backend, dist.PrefixStore("default_pg", store or ours)

    def _tcp_store(self, meeting: Any, timeout: timedelta, is_uv: bool) -> Any:
        """One at whichever port is free on rank 0, as the ranks tell each other in another store."""
        options = {"wait_for_workers": False, "timeout": timeout, "use_libuv": is_uv}
        self.n_stores += 1
        key = f"port of store {self.n_stores}"
        if self.rank:
            return dist.TCPStore("localhost", int(meeting.get(key)), self.world_size, False, **options)
        self.servers.append(dist.TCPStore("localhost", 0, self.world_size, True, **options))
        meeting.set(key, str(self.servers[-1].port))
        return self.servers[-1]

    def step_aside(self) -> None:
        """The program makes a default group of another kind, and torch knows no other; ours is the next one of all."""
        ours = self.group or c10d.GroupMember.WORLD
        if self.is_free and ours is not None:
            self.group, world = ours, c10d._world
            books = (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag)
            self.entries = [(book, book.pop(self.group)) for book in books]
            world.tags_to_pg.clear()
            world.group_count = 0
            self.group.be_known(False)
            c10d._update_default_pg(None)
        self.is_free = False

    def _put_back(self) -> None:
        """The default group that was kept back is there."""
        for book, entry in self.entries:
            book[self.group] = entry
        if self.entries:
            self.group.be_known(True)
            world = c10d._world
            for tag in (world.pg_to_tag[self.group], ""):
                world.tags_to_pg.setdefault(tag, []).append(self.group)
            world.group_count, self.entries = 1, []
        c10d._update_default_pg(self.group)

    def name_backend(self, group: dist.ProcessGroup, asked: str) -> None:
        """`get_backend` says what was asked for, as torch does, "undefined" if it was nothing; nccl if it is there."""
        is_any = asked == dist.Backend.UNDEFINED
        has_nccl = self.has_nccl and ("nccl" in asked or is_any)
        if has_nccl or is_any or all(part.rpartition(":")[2] == "gloo" for part in asked.split(",")):
            world = c10d._world
            world.pg_map[group] = (dist.Backend(asked), world.pg_map[group][1])
            config = "cuda:nccl" if has_nccl and is_any else str(c10d.BackendConfig(dist.Backend(asked)))
            world.pg_backend_config[group] = config
            if has_nccl and "gloo" in asked:
                self.split(group)

    def _has(self, asked: str) -> bool:
        return asked == dist.Backend.UNDEFINED or "gloo" in asked or (self.has_nccl and "nccl" in asked)

    def _say(self, asked: str) -> None:
        if not self._has(asked) and self.rank == 0 and self.is_free:
            print(f"init_process_group: {asked} needs hardware that ranks have not; gloo does it here", file=sys.stderr)


_find: Callable[[], Lent] | None = None  # in a rank: its own
_torchs = c10d.init_process_group


def _is_of_the_programs(backend: Any) -> bool:
    """Whether it was registered with torch.distributed, as "fake" is: not one of those that connect ranks.

    From torch 2.14 on gloo and nccl are registered as well, once something has asked for them.
    """
    names = [part.rpartition(":")[2].upper() for part in str(backend or "").split(",")]
    found = [dist.Backend._plugins[name].creator_fn for name in names if name in dist.Backend._plugins]
    return any(getattr(creator, "__module__", "") != c10d.__name__ for creator in found)


def keep_back() -> None:
    """The running rank's default group is not there until it calls `init_process_group`."""
    if _find is not None:
        _find().keep_back()


def install(find: Callable[[], Lent]) -> None:
    """From now on `init_process_group` asks `find()`."""
    global _find
    _find = find
    for module in _HOLDERS:
        module.init_process_group = init_process_group


@contextmanager
def installed(find: Callable[[], Lent]) -> Iterator[None]:
    """`install`, for a while."""
    global _find
    before = _find, c10d.init_process_group
    install(find)
    try:
        yield
    finally:
        _find = before[0]
        for module in _HOLDERS:
            module.init_process_group = before[1]


def init_process_group(
    backend: Any = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    **newer: Any,
) -> None:
    """torch.distributed's, in a rank: its ranks have met already, wherever `init_method` would have them meet."""
    if _is_of_the_programs(backend):
        if _find().is_free:
            _find().step_aside()
        options = {"group_name": group_name, "pg_options": pg_options, "device_id": device_id, **newer}
        _torchs(backend, init_method, timeout, world_size, rank, store, **options)
        return
    _find().join(backend, init_method, timeout, world_size, rank, store)
