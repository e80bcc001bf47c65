"""The threads of a rank that is a process: each has a lane, with a clock and a wait of its own.

A lane counts as its rank's number wherever ranks are counted, in groups, ports and the ledger. Only what is kept for
who runs (clock, wait, place to go on) is kept a lane.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop

import greenlet

from hw_utils.virtual.agenda import Agenda, Expiry
from hw_utils.virtual.ranks.greenlets_or_threads import Greenlets


class Lane(int):
    """One thread of a rank. The first lane of rank r is at place r, after them comes the scheduler's."""

    def __new__(cls, rank: int, place: int, thread: int | None = None, name: str = "") -> Lane:
        lane = super().__new__(cls, rank)
        lane.place, lane.thread, lane.name = place, thread, name
        lane.inbox = deque()  # what it has asked for and nobody has read
        lane.is_asking = False  # from there until it has its answer
        return lane

    def __reduce__(self):
        return int, (int(self),)


class OfLanes(list):
    """A list that is asked by a lane, or by a rank for its first one."""

    def __getitem__(self, who):
        return list.__getitem__(self, getattr(who, "place", who))

    def __setitem__(self, who, value) -> None:
        list.__setitem__(self, getattr(who, "place", who), value)


class LaneAgenda(Agenda):
    """The agenda of all threads of all ranks."""

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.clock, self.waiting = OfLanes([*self.clock, 0.0]), OfLanes([*self.waiting, None])
        self.lanes: list[Lane] = [Lane(rank, rank) for rank in range(world_size + 1)]
        self.due = self.lanes[:world_size][::-1]

    def next_rank(self) -> int:
        """The same; a wait ends by its time limit after what ranks may still have to say."""
        while self.agents and self.times and not self.due:
            limits = [self.agents.get(who) for who in self.later[self.times[0]]]
            if not all(isinstance(limit, Expiry) for limit in limits):
                break
            if any(self.waiting[limit.rank] is limit.what for limit in limits) and self.hears_more():
                continue
            for who in self.later.pop(heappop(self.times)):
                self.agents.pop(who).go_on()
        return super().next_rank()

    def hears_more(self) -> bool:
        """Whether a rank has asked for something since."""
        return False

    def add(self, rank: int, thread: int, name: str, at_s: float) -> Lane:
        """A lane for one more thread of a rank, which is due at once."""
        lane = Lane(rank, len(self.lanes), thread, name)
        self.lanes.append(lane)
        self.clock.append(at_s)
        self.waiting.append(None)
        self.schedule(lane, at_s)
        return lane

    def rows(self) -> list[tuple[Lane, object]]:
        return [(lane, what) for lane, what in zip(self.lanes, self.waiting) if what is not None]


class LaneGreenlets(Greenlets):
    """All lanes on one OS thread; there may be more of them every moment."""

    Resume = OfLanes

    def host(self, schedule) -> None:
        super().host(schedule)
        while not self.scheduler.dead:  # somebody is here to have a lane begun
            task, lane, back = self.asked
            task.switch(lane)
            back.switch()

    def add(self, lane: Lane) -> None:
        """One more lane, which begins where the others have."""
        task = greenlet.greenlet(self._run, self.scheduler)
        self.tasks.append(task)
        self.resume.append(task.switch)
        self.asked = task, lane, greenlet.getcurrent()
        self.home.switch()
