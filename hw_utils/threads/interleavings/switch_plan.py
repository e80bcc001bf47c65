"""Who runs next, and when a turn ends before its rank waits: one order of threads, the same each time."""

from __future__ import annotations

import random

# How likely a switch is at a point, one of these in an order. Races that need two unlucky switches close together, as
# a flag that is looked at and then set, show themselves in one of 100 of these orders. With rarer switches they
# hardly ever do.
_RATES = (0.1, 0.3, 0.6)


class Plan:
    """Who runs next: at most one unlucky switch at a given point, or random ones.

    `turns`: for each time that a turn passed the points before it, the rank that gave it away (-1 at the start), and
    those that could take it, a bit each.
    """

    def __init__(self, at: int = -1, to: int = 0, seed: int | None = None) -> None:
        self.at, self.to, self.seen, self.switches = at, to, 0, 0
        self.turns: list[tuple[int, int, int]] = []
        self.is_unlucky = False  # the switch that comes now
        self.random = None if seed is None else random.Random(seed)
        self.rate = self.random.choice(_RATES) if self.random else 0.0

    def at_point(self) -> bool:
        """Whether to switch here."""
        self.seen += 1
        if self.random:
            return self.random.random() < self.rate
        self.is_unlucky = self.seen == self.at
        return self.is_unlucky

    def choose(self, runnable: list[int], rank: int) -> int:
        self.turns.append((self.seen, rank, sum(1 << r for r in runnable)))
        if len(runnable) == 1:
            return runnable[0]
        self.switches += rank in runnable
        if self.random:
            others = [r for r in runnable if r != rank]
            return self.random.choice(others or runnable)
        if self.is_unlucky:
            self.is_unlucky = False
            others = [r for r in runnable if r != rank]
            return others[self.to % len(others)]
        if rank in runnable:  # it sleeps: in a loop until others have done something, so all of them get their turn
            return next((r for r in runnable if r > rank), runnable[0])
        return runnable[0] if self.at < 0 else runnable[self.to % len(runnable)]
