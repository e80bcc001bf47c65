"""The groups of a run: who is in them, and where their members meet."""

from __future__ import annotations

from copy import copy

from hw_utils.core.calls.arguments import SHORT_S
from hw_utils.core.calls.fingerprint import FingerPrint
from hw_utils.virtual.traffic.collectives import Call, Post


class Members:
    """A group that all its ranks share: who is in it, and the collectives they have called."""

    def __init__(self, engine, number: int, ranks: tuple[int, ...]) -> None:
        self.engine, self.number, self.ranks = engine, number, ranks
        self.running = ranks if engine.folding is None else engine.folding.running(ranks)  # the others do the same
        self.limit_s: float | None = None  # seconds that a call may take, where the program gave the group a timeout
        self.place_of = {rank: i for i, rank in enumerate(ranks)}
        self.gave_up: set[int] = set()  # places of those whose wait has run into its time limit
        self._barriers: Members | None = None  # counts monitored barriers
        self._begin()

    def _begin(self) -> None:
        self.n_called = [0] * len(self.ranks)
        self.calls: dict[int, Call] = {}

    @property
    def is_short(self) -> bool:
        """Whether messages have that limit as well: with a longer one, a standstill is told at once."""
        return self.limit_s is not None and self.limit_s <= SHORT_S

    def counting(self, post: Post) -> Members:
        """Where a call is counted: a monitored_barrier with a time limit is none of those that all make in one order.

        gloo makes it of messages, so that a member may leave it out, and the others say who that was.
        """
        if post.name != "monitored_barrier" or post.limit_s is None:
            return self
        if self._barriers is None:
            self._barriers = copy(self)
            self._barriers._begin()
        return self._barriers

    def close(self, place: int) -> None:
        """A member gives up: as with gloo, no later call of the group is made."""
        self.gave_up.add(place)
        if self.number == 0:
            for rank in self.ranks:
                self.engine.queues.go_elsewhere(rank)  # the short cuts do not ask


class _Meeting:
    """What a rank stands in while the others make their part of `new_group` or `init_process_group`."""

    row = -1

    def __init__(self, rank: int, name: str, site: int, late: set[int]) -> None:
        self.rank, self.name, self.site, self.late = rank, name, site, late

    def waits_for(self) -> tuple[int, ...]:
        return tuple(sorted(self.late))


class GroupRegistry:
    """The groups of a run by their numbers, the default group first; in the process that has the engine."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.numbered = [Members(engine, 0, tuple(range(engine.world_size)))]
        self.by_key: dict[tuple, Members] = {}
        self.arrived: dict[tuple, list[_Meeting]] = {}
        self.brought: dict[tuple, dict[int, FingerPrint]] = {}

    def members_of(self, key: tuple, name: str, site: int) -> Members:
        """The members of (which group, its ranks), once all of them have come."""
        if key not in self.by_key:
            self.by_key[key] = Members(self.engine, len(self.numbered), key[1])
            self.numbered.append(self.by_key[key])
        members = self.by_key[key]
        self._meet(key, members, name, site)
        return members

    def exchange(
        self, number: int, nth: int, mine: FingerPrint, name: str, site: int, limit_s: float | None
    ) -> dict[int, FingerPrint]:
        """What the members of group `number` call next, by place; of those that have come in `limit_s` seconds."""
        members, key = self.numbered[number], (number, nth)
        brought = self.brought.setdefault(key, {})
        brought[members.place_of[self.engine.rank]] = mine
        if len(brought) == len(members.running):
            del self.brought[key]
        self._meet(key, members, name, site, limit_s)
        return brought

    def _meet(self, key, members: Members, name: str, site: int, limit_s: float | None = None) -> None:
        """Stands still until all members have come, or the time is up."""
        engine, rank = self.engine, self.engine.rank
        engine.compute.now()
        engine.let_the_past_run(rank)
        meetings = self.arrived.setdefault(key, [])
        late = meetings[0].late if meetings else set(members.running)
        late.discard(rank)
        if late:
            meetings.append(meeting := _Meeting(rank, name, site, late))
            if not engine.block_for(rank, meeting, limit_s):
                meetings.remove(meeting)
        else:
            del self.arrived[key]
            for meeting in meetings:
                engine.agenda.wake(meeting.rank, engine.clock[rank])
        engine.compute.resume()
