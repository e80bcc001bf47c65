"""Random numbers of virtual ranks: torch's, Python's and numpy's global state, one a rank."""

from __future__ import annotations

import ctypes
import functools
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
        (module, name, value, _drawing(value, state_of, engine.threads.carries))
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


def _drawing(shared: Callable, state_of: Callable[[], Any], carries: Callable[[], bool]) -> Callable:
    name = shared.__name__

    def draw(*args, **options):
        return (getattr(state_of(), name) if carries() else shared)(*args, **options)

    draw.__name__ = name
    return draw


SEED = 67280421310721  # a new Generator's own, and rank 0's; rank r has the r-th after it until it sets one
_WINDOW_BYTES = 3000  # from the start of the generator's object: past its 624 words
_PLACE_AT = 8  # bytes from where it begins to move: in front is how many words are left
UNSEEN = -1  # what no glance shows
_HEAD_BYTES = 64  # its place among the words and the first of them, which are others after a turn or a seed


class TorchStates:
    """torch's default generator, handed from rank to rank; its 5 kB are copied only when a rank has drawn.

    Each rank begins with a seed of its own, as a process would. As most programs set one or draw nothing, all begin
    with rank 0's, and the first other rank that draws from that calls `own_seeds_needed`, which begins the run again.

    own_seeds: they are in place from the start.
    """

    def __init__(self, world_size: int, *, own_seeds: bool = False) -> None:
        self.generator = torch.default_generator
        self.first = self.loaded = torch.Generator().manual_seed(SEED).get_state()
        self.states: list[torch.Tensor | None] = [self.first, *[None if own_seeds else self.first] * (world_size - 1)]
        self.own_seeds = own_seeds
        self.own_seeds_needed: Callable[[], None] = lambda: None
        self.head, self.tail = _moving_parts(self.generator)
        self.glance = _place(self.generator, self.head)
        self.generator.set_state(self.first)
        self.plain_tail = self.tail.raw if self.tail else b""
        self._look()

    def _look(self) -> None:
        """Remembers how the generator looks, to see when somebody may have drawn: then `glance` is not `seen`."""
        self.seen = UNSEEN if self.head is None else self.glance.value
        if self.head is not None:
            self.seen_head, self.seen_tail = self.head.raw, self.tail.raw
            if self.seen_tail != self.plain_tail:
                self.seen = UNSEEN  # a number is kept: the next draw may take that, and move nothing else

    def leave(self, rank: int) -> None:
        """Keeps the state of a rank that stops running."""
        if self.may_have_drawn():
            self.require_own_seed(rank)
            self.states[rank] = self.loaded = self.generator.get_state()
            self._look()

    def may_have_drawn(self) -> bool:
        """Whether the generator looks other than when its rank's turn began."""
        return self.head is None or self.head.raw != self.seen_head or self.tail.raw != self.seen_tail

    def require_own_seed(self, rank: int) -> None:
        """Begins the run again if what the running rank has drawn, or may have, came of rank 0's seed."""
        if not self.own_seeds and rank and self.generator.initial_seed() == SEED and self.may_have_drawn():
            self.own_seeds_needed()

    def enter(self, rank: int) -> None:
        """Puts the state of a rank in place that runs from now on."""
        state = self.states[rank]
        if state is None:
            self.generator.manual_seed(SEED + rank)
            self.states[rank] = self.loaded = self.generator.get_state()
            self._look()
        elif state is not self.loaded:
            self.generator.set_state(state)
            self.loaded = state
            self._look()


def _place(generator: torch.Generator, head: ctypes.Array | None) -> ctypes.c_uint64:
    """Eight bytes that every draw but that of a kept number changes: the place among the words, and the first word."""
    if head is None:
        return ctypes.c_uint64(0)
    return ctypes.c_uint64.from_address(ctypes.addressof(head) + _PLACE_AT)


def _moving_parts(generator: torch.Generator) -> tuple[ctypes.Array | None, ctypes.Array | None]:
    """The memory of a generator that changes with every draw: where it stands, and a normal number that is kept.

    None, None if there is none to be found.
    """
    address = getattr(generator, "_cdata", 0)
    if not address:
        return None, None
    if not (places := moving_places()):
        return None, None
    first, kept, last = places
    return (
        (ctypes.c_char * _HEAD_BYTES).from_address(address + first),
        (ctypes.c_char * (last + 1 - kept)).from_address(address + kept),
    )


@functools.cache
def moving_places() -> tuple[int, int, int] | tuple[()]:
    """From which byte of a generator on it moves, from which on a number is kept, and the last byte."""
    generator = torch.default_generator
    before = generator.get_state()
    whole = (ctypes.c_char * _WINDOW_BYTES).from_address(generator._cdata)
    looks = [whole.raw]
    # two normal numbers are made at a time: the second draw takes the one that was kept
    for draw in (torch.rand, torch.randn, torch.randn):
        draw(1, generator=generator)
        looks.append(whole.raw)
    generator.set_state(before)
    moved = [[i for i in range(_WINDOW_BYTES) if a[i] != b[i]] for a, b in itertools.pairwise(looks)]
    return (min(moved[0]), min(moved[2]), max(map(max, moved))) if all(moved) else ()
