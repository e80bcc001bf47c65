"""Which orders are tried: single switches over all points, and random ones that find what no single switch does."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from hw_utils.threads.interleavings import explorer
from hw_utils.threads.interleavings.explorer import explore


class Guarded:
    """A counter behind a guard that two ranks can pass at a time, if each of them is interrupted at the worst point."""

    def __init__(self):
        self.value, self.busy, self.lock = 0, False, None

    def add_behind_a_flag(self):
        while self.busy:
            time.sleep(0)
        self.busy = True
        value = self.value
        self.value = value + 1
        self.busy = False

    def add_behind_two_flags(self):
        while self.lock:
            time.sleep(0)
        self.lock = True
        self.add_behind_a_flag()
        self.lock = False

    def add_behind_a_lock_that_is_made_late(self):
        if self.lock is None:
            self.lock = threading.Lock()
        with self.lock:
            value = self.value
            self.value = value + 1


@pytest.mark.parametrize("how", [name for name in dir(Guarded) if name.startswith("add")])
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_race_that_needs_two_unlucky_switches_or_more_is_found(how, world_size):
    def program(counter, rank, note):
        getattr(counter, how)()
        return counter.value

    for seed in range(3):
        explored = explore(Guarded, program, world_size, n_interleavings=500, seed=seed)
        assert any(world_size not in outcome.results for outcome in explored.outcomes), seed


def test_single_switches_are_spread_over_all_points_where_there_are_more_than_orders():
    orders = [*explorer._orders(100, 3, 50, 0)]
    places = [at for at, _, seed in orders if seed is None]
    assert (len(orders), len(places)) == (49, 25)
    assert max(b - a for a, b in itertools.pairwise([0, *places, 101])) <= 6
