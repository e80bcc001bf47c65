"""Who is due when: the ranks and the steps of collectives that wait for their turn in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Expiry:
    """The end of the time that a rank gives a wait. counts: whether it still does when it has come."""

    def __init__(self, agenda: Agenda, rank: int, what, at_s: float, counts: Callable[[], bool]) -> None:
        self.agenda, self.rank, self.what, self.at_s, self.has_come = agenda, rank, what, at_s, False
        self.counts = counts

    def go_on(self) -> None:
        if self.agenda.waiting[self.rank] is self.what and self.counts():
            self.has_come = True
            self.agenda.wake(self.rank, self.at_s)


class Agenda:
    """The ranks' clocks, and who is due at which time.

    Times are often equal: so it is a heap of different times, with the ranks of each. Of those that are due at one time
    the lowest rank comes first. Beside ranks there are agents: steps that happen at a time whatever a rank does then.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.clock = [0.0] * world_size
        self.waiting: list = [None] * world_size  # what a rank stands still for: a Request, a VirtualWork, ...
        self.times: list[float] = []
        self.later: dict[float, list[int]] = {}  # time -> who is due then
        self.due = list(range(world_size - 1, -1, -1))  # who is due at `due_s`, the last one first
        self.due_s = 0.0
        self.agents: dict[int, object] = {}  # by numbers above those of the ranks
        self.n_agents = 0

    def schedule(self, who: int, at_s: float) -> None:
        """Puts a rank or an agent on the agenda."""
        others = self.later.get(at_s)
        if others is None:
            self.later[at_s] = [who]
            heappush(self.times, at_s)
        else:
            others.append(who)

    def at(self, at_s: float, agent) -> None:
        """Has `agent.go_on()` called at a given time."""
        self.n_agents += 1
        number = self.world_size + self.n_agents
        self.agents[number] = agent
        self.schedule(number, at_s)

    def wake(self, rank: int, at_s: float) -> None:
        """A rank that stood still can go on from `at_s`."""
        self.waiting[rank] = None
        if at_s > self.clock[rank]:
            self.clock[rank] = at_s
        self.schedule(rank, self.clock[rank])

    def is_anybody_before(self, at_s: float) -> bool:
        """Whether someone is due earlier."""
        return bool((self.due and self.due_s < at_s) or (self.times and self.times[0] < at_s))

    def rows(self) -> list[tuple[int, object]]:
        """(rank, what it stands still for), one a wait."""
        return [(rank, what) for rank, what in enumerate(self.waiting) if what is not None]

    def next_rank(self) -> int:
        """The rank that is furthest behind and can run, of equal ones the first; `world_size` if there is none."""
        due, times = self.due, self.times
        while True:
            if not due:
                if not times:
                    return self.world_size
                self.due_s = heappop(times)
                due[:] = sorted(self.later.pop(self.due_s), reverse=True)
            who = due.pop()
            if who < self.world_size:
                return who
            self.agents.pop(who).go_on()  # not a rank but a step of a collective
