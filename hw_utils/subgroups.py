"""`dist.new_group` on virtual ranks: every rank calls it, and the members of the new group meet."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils.virtual_group import Members, VirtualGroup


class _Meeting:
    """What a rank stands in while the others make their part of `new_group`."""

    row, name = -1, "new_group"

    def __init__(self, rank: int, site: int, late: set[int]) -> None:
        self.rank, self.site, self.late = rank, site, late

    def waits_for(self) -> tuple[int, ...]:
        return tuple(sorted(self.late))


class Groups:
    """`dist.new_group` on virtual ranks: every rank calls it, the members meet."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.n_called: dict[int, int] = {}
        self.members: dict[tuple[int, tuple[int, ...]], Members] = {}
        self.arrived: dict[tuple[int, tuple[int, ...]], list[_Meeting]] = {}

    def new_group(self, ranks=None, timeout=None, backend=None, *positional, **options):
        """In place of torch.distributed's own, with its checks."""
        engine = self.engine
        rank, size = engine.rank, engine.world_size
        ranks = list(range(size)) if ranks is None else list(ranks)
        if options.get("sort_ranks", True):
            ranks = sorted(ranks)
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"ranks list must not contain duplicate entries, got {ranks}")
        for r in ranks:
            if not 0 <= r < size:
                raise ValueError(f"Rank {r} is out of range. Valid ranks are 0 to {size - 1} (world_size={size})")
        if options.get("use_local_synchronization"):
            number = -1
        else:
            number = self.n_called[rank] = self.n_called.get(rank, 0) + 1
        if rank not in ranks:
            return None if number < 0 else dist.GroupMember.NON_GROUP_MEMBER
        return self._join((number, tuple(ranks)))

    def _join(self, key: tuple[int, tuple[int, ...]]) -> VirtualGroup:
        engine, rank = self.engine, self.engine.rank
        if key not in self.members:
            self.members[key] = Members(engine, len(engine.groups), key[1])
            engine.groups.append(self.members[key])
        members = self.members[key]
        self._meet(key, rank)
        group = VirtualGroup(members, rank, f"rank {rank} of group {members.number}")
        c10d._world._current().add(group, members.place_of, engine.store)
        return group

    def _meet(self, key, rank: int) -> None:
        """Stands still until all members have come."""
        engine = self.engine
        engine.now()
        engine.let_the_past_run(rank)
        meetings = self.arrived.setdefault(key, [])
        late = meetings[0].late if meetings else set(key[1])
        late.discard(rank)
        if late:
            meetings.append(_Meeting(rank, engine.places.of(sys._getframe(2)), late))
            engine.block(rank, meetings[-1])
        else:
            del self.arrived[key]
            for meeting in meetings:
                engine.wake(meeting.rank, engine.clock[rank])
        engine.resume_compute()

    @contextmanager
    def installed(self):
        """Puts it in place of torch.distributed's."""
        before = c10d._new_group_with_tag
        c10d._new_group_with_tag = self.new_group
        try:
            yield
        finally:
            c10d._new_group_with_tag = before
