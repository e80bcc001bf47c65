"""`dist.new_group` on virtual ranks: every rank calls it, and the members of the new group meet."""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.calls import fingerprint
from hw_utils.core.calls.arguments import as_timedelta
from hw_utils.core.calls.patched import patched
from hw_utils.scripts import process_group_setup, spawned_ranks
from hw_utils.virtual.groups.group import OF_WORLD, VirtualGroup, limit_of, unregister
from hw_utils.virtual.groups.world import add_to_world
from hw_utils.virtual.stores.torch_stores import DEFAULT, VirtualStore


def _like_torchs(group: VirtualGroup) -> VirtualGroup:
    """The group, which torch would have made itself, and would have put its wrapper around."""
    return group.compare_calls() if dist.get_debug_level() == dist.DebugLevel.DETAIL else group


class Groups:
    """`dist.new_group` on virtual ranks: every rank calls it, the members meet.

    is_alone: whether the rank has a process of its own, and so all that C++ code knows of groups, by torch's names.
    """

    def __init__(self, engine, is_alone: bool = False) -> None:
        self.engine, self.is_alone = engine, is_alone
        self.n_made: dict[tuple[int, tuple], int] = {}
        self.lents: dict[int, process_group_setup.Lent] = {}
        self.n_worlds: dict[int, int] = {}
        self.torchs = c10d._new_group_with_tag

    def new_group(self, ranks=None, timeout=None, backend=None, backend_options=None, pg_tag=None, *more, **options):
        """In place of torch.distributed's own, with its checks."""
        engine = self.engine
        if not isinstance(c10d._world.default_pg, (VirtualGroup, type(None))):  # the program's own, as a "fake" one
            return self.torchs(ranks, timeout, backend, backend_options, pg_tag, *more, **options)
        numbered = self._numbered()
        rank, size = engine.rank, len(numbered)
        ranks = list(range(size)) if ranks is None else list(ranks)
        if options.get("sort_ranks", True):
            ranks = sorted(ranks)
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"ranks list must not contain duplicate entries, got {ranks}")
        for r in ranks:
            if not 0 <= r < size:
                raise ValueError(f"Rank {r} is out of range. Valid ranks are 0 to {size - 1} (world_size={size})")
        is_local = bool(options.get("use_local_synchronization"))
        torchs_name = c10d._process_group_name(ranks, use_hashed_name=is_local)
        members = tuple(numbered[r] for r in ranks)
        number = self._number(members, is_local)
        if rank not in members:
            if is_local:
                return None
            c10d._world.pg_group_ranks[dist.GroupMember.NON_GROUP_MEMBER] = {r: i for i, r in enumerate(ranks)}
            return dist.GroupMember.NON_GROUP_MEMBER
        known = c10d._find_pg_by_ranks_and_tag(pg_tag, ranks) if pg_tag else None
        if known is not None:
            return known
        desc = options.get("group_desc") or "undefined"
        group = _like_torchs(self._join(number, members, timeout, desc=desc, tag=pg_tag, torchs_name=torchs_name))
        c10d._world.pg_group_ranks[group] = {r: place for place, r in enumerate(ranks)}
        of_all = c10d._world.pg_map.get(c10d._world.default_pg)
        self.lent().name_backend(group, str(backend or (of_all and of_all[0])).lower())
        return group

    def _number(self, members: tuple[int, ...], is_local: bool) -> str:
        """Which group it is: the nth that its members, or all ranks of a world, make."""
        group = c10d._world.default_pg
        makers = ("members", *members) if is_local else ("world", 0 if group is None else group.members.number)
        nth = self.n_made[self.engine.rank, makers] = self.n_made.get((self.engine.rank, makers), 0) + 1
        return f"{nth} of {makers}"

    def join_world(self, rank: int) -> None:
        """What init_process_group would have left behind."""
        everybody = self.engine.groups.numbered[0]
        group = _like_torchs(VirtualGroup(everybody, rank, "0" if self.is_alone else f"rank {rank} of all"))
        world = add_to_world(group, everybody.place_of, VirtualStore(self.engine, DEFAULT))
        world.default_pg, world.group_count = group, 1

    def lent(self) -> process_group_setup.Lent:
        """The running rank's default group, as its program's `init_process_group` will find it."""
        rank = self.engine.rank
        if rank not in self.lents:
            has_nccl = self.engine.lines is not None
            makes = self.new_world, self.new_world_of_some
            self.lents[rank] = process_group_setup.Lent(rank, self.engine.world_size, *makes, has_nccl, self.split)
        return self.lents[rank]

    def _numbered(self) -> tuple[int, ...]:
        """The run's ranks in the order in which the program numbers them: that of its default group."""
        group = c10d._world.default_pg
        return tuple(range(self.engine.world_size)) if group is None else group.members.ranks

    def _of_script(self) -> process_group_setup.Lent | None:
        """The same, while the rank's script has no group; None for threads that carry no rank."""
        if not self.engine.threads.carries() or self.engine.rank >= self.engine.world_size:
            return None
        lent = self.lent()
        return lent if spawned_ranks.has_no_group(lent) else None

    def new_world(self, timeout=None, store=None) -> None:
        """A default group in place of the one that this rank has destroyed; all ranks meet in it."""
        engine = self.engine
        number = self.n_worlds[engine.rank] = self.n_worlds.get(engine.rank, 1) + 1
        everybody = tuple(range(engine.world_size))
        torchs_name = c10d._process_group_name([], use_hashed_name=False)
        joined = self._join(f"world {number}", everybody, timeout, "init_process_group", OF_WORLD, None, torchs_name)
        c10d._world.default_pg = joined

    def new_world_of_some(self, store: VirtualStore, place: int, size: int, timeout: timedelta) -> None:
        """The same, of those that meet in the store, and number themselves."""
        torchs_name = c10d._process_group_name([], use_hashed_name=False)
        group = _like_torchs(self.by_hand(store, place, size, timeout, torchs_name=torchs_name))
        group.desc = OF_WORLD
        c10d._world.pg_group_ranks[group] = {r: r for r in range(size)}
        c10d._world.pg_map[group] = ("gloo", store)
        c10d._world.default_pg = group
        self.engine.queues.go_elsewhere(self.engine.rank)

    def split(self, group: VirtualGroup) -> None:
        """The group has a backend for each kind of device: objects, which are on the CPU, wait for no other call."""
        name = f"objects of {group.members.number}"
        members = self.engine.groups.members_of((name, group.members.ranks), "init_process_group", 0)
        group.of_objects = VirtualGroup(members, self.engine.rank, f"{group.registered_as}, {name}")

    def unregister(self) -> None:
        """In place of torch's: C++ code forgets the running rank's groups only."""
        unregister(f"rank {self.engine.rank} of ")

    def _join(
        self, number: str, ranks: tuple[int, ...], timeout, name: str = "new_group", desc: str = "",
        tag: str | None = None, torchs_name: str = "",
    ) -> VirtualGroup:  # fmt: skip
        engine, rank = self.engine, self.engine.rank
        members = engine.groups.members_of((number, ranks), name, engine.places.of(sys._getframe(2)))
        if timeout is not None:
            members.limit_s = limit_of(timeout)
        among_all = f"rank {rank} of group {members.number}"  # C++ code keeps groups by name, those of this process
        group = VirtualGroup(members, rank, torchs_name if self.is_alone and torchs_name else among_all, desc)
        add_to_world(group, members.place_of, VirtualStore(engine, f"group {members.number}"), tag)
        return group

    @contextmanager
    def installed(self):
        """Puts it in place of torch.distributed's."""
        before = c10d._new_group_with_tag, c10d._unregister_all_process_groups
        c10d._new_group_with_tag = self.new_group
        if not self.is_alone:
            c10d._unregister_all_process_groups = self.unregister
        try:
            with process_group_setup.installed(self.lent), spawned_ranks.installed(self._of_script), self._by_hand():
                yield
        finally:
            c10d._new_group_with_tag, c10d._unregister_all_process_groups = before

    def by_hand(self, store: VirtualStore, rank: int, size: int, *more, torchs_name: str = "", **named) -> VirtualGroup:
        """Gloo's own group, made without `new_group`: who is in it, the members tell each other in its store."""
        nth = store.add(f"of rank {rank}", 1)
        store.set(f"group {nth}, rank {rank}", str(self.engine.rank))
        ranks = tuple(int(store.get(f"group {nth}, rank {r}")) for r in range(size))
        given = [getattr(value, "_timeout", value) for value in (*more, *named.values())]
        limits = [as_timedelta(t) for t in given if isinstance(t, (timedelta, int, float))]
        number, limit = f"{nth} of {store.name} {store.prefix}", next(iter(limits), None)
        return self._join(number, ranks, limit, "ProcessGroupGloo", torchs_name=torchs_name)

    @contextmanager
    def _by_hand(self):
        """Gloo's own group and remote procedure calls would wait in sockets for ranks of this very process."""
        groups, begin = self, dist.rpc.init_rpc if dist.rpc.is_available() else None

        class OfVirtualRanks(c10d.ProcessGroupGloo):
            def __new__(cls, store, *arguments, **named):
                if groups.engine.threads.carries() and isinstance(store, VirtualStore):
                    return groups.by_hand(store, *arguments, **named)
                return super().__new__(cls)

        @functools.wraps(begin)
        def init_rpc(*arguments, **named):
            if self.is_alone:
                self.engine.threads.are_torchs_too()
            else:
                self.engine.ending.need("processes", "torch.distributed.rpc has connections of its own")
            return begin(*arguments, **named)

        with ExitStack() as stack:
            for module in (dist, c10d):
                stack.enter_context(patched(module, "ProcessGroupGloo", OfVirtualRanks))
            stack.enter_context(patched(c10d, "_ProcessGroupWrapper", fingerprint.around(VirtualGroup)))
            if begin is not None:  # torch may be built without
                stack.enter_context(patched(dist.rpc, "init_rpc", init_rpc))
            yield
