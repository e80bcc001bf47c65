"""Python's and numpy's global random numbers, one state a virtual rank; torch's is handled at each switch."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def own_random_states(engine):
    """`random.random()` and `np.random.rand()` draw from the running rank's own state, seeded with its number."""
    places = [
        (random, random._inst, _per_rank(engine, random.Random)),
        (np.random, np.random.mtrand._rand, _per_rank(engine, np.random.RandomState)),
    ]
    before = [
        (module, name, value, _drawing(name, state_of))
        for module, shared, state_of in places
        for name, value in vars(module).items()
        if getattr(value, "__self__", None) is shared
    ]
    try:
        for module, name, _, own in before:
            setattr(module, name, own)
        yield
    finally:
        for module, name, value, _ in before:
            setattr(module, name, value)


def _per_rank(engine, kind: Callable[[int], Any]) -> Callable[[], Any]:
    states: dict[int, Any] = {}

    def state_of():
        rank = engine.rank
        if rank not in states:
            states[rank] = kind(rank)
        return states[rank]

    return state_of


def _drawing(name: str, state_of: Callable[[], Any]) -> Callable:
    def draw(*args, **options):
        return getattr(state_of(), name)(*args, **options)

    draw.__name__ = name
    return draw
