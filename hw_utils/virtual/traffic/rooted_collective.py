"""A rooted collective (broadcast, gather, scatter) message by message: nobody waits for a member it does not need."""

from __future__ import annotations


class Relay:
    """The messages of one collective; `finished(member, at_s)` is called when a member's own part is done."""

    def __init__(self, engine, ranks, schedule, finished) -> None:
        self.engine, self.ranks, self.finished = engine, ranks, finished
        self.messages: list[tuple[int, int, int]] = []
        self.phases: dict[int, list[list[int]]] = {}  # member -> the messages of each of its steps
        for step in schedule:
            self._add(step)
        self.ends = [0] * len(self.messages)  # how many of its two ends have got to a message
        self.phase = [-1] * len(ranks)
        self.open = [0] * len(ranks)  # messages of the member's step that have not crossed
        self.latest_s = [0.0] * len(ranks)

    def _add(self, step) -> None:
        mine: dict[int, list[int]] = {}
        for src, dst, n_bytes in zip(step.src.tolist(), step.dst.tolist(), step.n_bytes.tolist()):
            for member in (src, dst):
                mine.setdefault(member, []).append(len(self.messages))
            self.messages.append((src, dst, n_bytes))
        for member, numbers in mine.items():
            self.phases.setdefault(member, []).append(numbers)

    def enter(self, member: int, now_s: float) -> None:
        """The member calls, or has finished a step: it gets to its next one."""
        self.phase[member] += 1
        phases = self.phases.get(member, [])
        if self.phase[member] == len(phases):
            self.finished(member, now_s)
            return
        numbers = phases[self.phase[member]]
        self.open[member], self.latest_s[member] = len(numbers), now_s
        for number in numbers:
            self.ends[number] += 1
            if self.ends[number] == 2:
                self._cross(*self.messages[number], now_s)

    def _cross(self, src: int, dst: int, n_bytes: int, now_s: float) -> None:
        end_s = self.engine.ports.travel(self.ranks[src], self.ranks[dst], n_bytes, now_s)
        for member in (src, dst):
            self.open[member] -= 1
            self.latest_s[member] = max(self.latest_s[member], end_s)
            if not self.open[member]:
                agent = Agent(self, member, self.latest_s[member])
                self.engine.agenda.at(agent.at_s, agent)


class Agent:
    """A member that gets to its next step at a given time, whatever its rank does meanwhile."""

    __slots__ = ("at_s", "member", "relay")

    def __init__(self, relay: Relay, member: int, at_s: float) -> None:
        self.relay, self.member, self.at_s = relay, member, at_s

    def go_on(self) -> None:
        self.relay.enter(self.member, self.at_s)
