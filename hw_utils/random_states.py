"""Random numbers of virtual ranks: torch's, Python's and numpy's global state, one a rank."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


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


SEED = 67280421310721  # torch's own default seed: every process starts with it
_WINDOW_BYTES = 3000  # from the start of the generator's object: past its 624 words


class TorchStates:
    """torch's default generator, handed from rank to rank; its 5 kB are copied only when a rank has drawn."""

    def __init__(self, world_size: int) -> None:
        self.generator = torch.default_generator
        self.first = self.loaded = torch.Generator().manual_seed(SEED).get_state()
        self.states = [self.first] * world_size
        self.look = _moving_part(self.generator)  # what the generator looks like in memory, if that tells
        self.generator.set_state(self.first)
        self.print = self.look and self.look.raw

    def leave(self, rank: int) -> None:
        """Keeps the state of a rank that stops running."""
        if self.look is None or self.look.raw != self.print:
            self.states[rank] = self.loaded = self.generator.get_state()
            self.print = self.look and self.look.raw

    def enter(self, rank: int) -> None:
        """Puts the state of a rank in place that runs from now on."""
        state = self.states[rank]
        if state is not self.loaded:
            self.generator.set_state(state)
            self.loaded, self.print = state, self.look and self.look.raw


def _moving_part(generator: torch.Generator) -> ctypes.Array | None:
    """The memory of a generator that changes with every draw; None if there is none to be found."""
    address = getattr(generator, "_cdata", 0)
    if not address:
        return None
    whole = (ctypes.c_char * _WINDOW_BYTES).from_address(address)
    looks = [whole.raw]
    # two normal numbers are made at a time: the second draw takes the one that was kept
    for draw in (torch.rand, torch.randn, torch.randn):
        draw(1, generator=generator)
        looks.append(whole.raw)
    moved = [[i for i in range(_WINDOW_BYTES) if a[i] != b[i]] for a, b in itertools.pairwise(looks)]
    if not all(moved):
        return None
    first, last = min(map(min, moved)), max(map(max, moved))
    return (ctypes.c_char * (last + 1 - first)).from_address(address + first)
