"""The numbers of a check's cases, which a grader can have drawn anew: then nobody who has read the check knows them.

A case with a `salt` has other numbers than the same case without one, the same ones in driver and judge. So an answer
that works out what other ranks hold, from what this package says of its cases, is right in the cases that it knows.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch


class _Draws:
    salt = 0
    n_asked = 0


def n_asked() -> int:
    """How often this process was asked for numbers that a salt changes."""
    return _Draws.n_asked


def are_salted() -> bool:
    """Whether the case that is driven or judged has a salt."""
    _Draws.n_asked += 1
    return bool(_Draws.salt)


@contextlib.contextmanager
def of(case: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The case without its salt, which holds meanwhile."""
    before, _Draws.salt = _Draws.salt, case.get("salt", 0)
    try:
        yield {name: value for name, value in case.items() if name != "salt"}
    finally:
        _Draws.salt = before


def seed(*names: int | str) -> int:
    """A seed for torch, of its own for other names: without a salt the first of them, which is a number.

    >>> seed(7, "weights")
    7
    """
    _Draws.n_asked += 1
    if not _Draws.salt:
        return int(names[0])
    return int.from_bytes(hashlib.sha256(repr((_Draws.salt, *names)).encode()).digest()[:7], "big")


def digits(shape: Sequence[int], *names: int | str) -> np.ndarray:
    """Whole numbers from 0 to 7, int64, to add to known ones; zeros without a salt."""
    drawn = seed(0, *names)
    return np.random.default_rng(drawn).integers(8, size=tuple(shape)) if _Draws.salt else np.zeros(tuple(shape), "i8")


def factor(*names: int | str) -> float:
    """From 1 to 2, of its own for other names, to stretch what would be known; 1 without a salt."""
    return 1 + seed(0, *names) % 1000 / 1000


def set_random_state(*names: int | str) -> None:
    """Gives torch a random state of its own for other names: it comes of no seed, whatever torch.initial_seed() says.

    >>> set_random_state(7, "masks")
    >>> first = torch.rand(1)
    >>> first == torch.rand(1, generator=torch.Generator().manual_seed(torch.initial_seed()))
    tensor([False])
    """
    draw = np.random.default_rng(seed(*names))
    state = torch.Generator().manual_seed(0).get_state().numpy()  # a seed, what is left of these words, the words
    state[:8] = np.frombuffer(draw.bytes(8), "u1")
    state[_WORDS].view("u8")[:] = draw.integers(2**32, size=624)
    torch.set_rng_state(torch.from_numpy(state))


_WORDS = slice(24, 24 + 624 * 8)  # of torch's state: those of the generator


def unknown_seed() -> int:
    """A seed that nobody knows beforehand: a driver draws it, and hands it to the judge with what it saw."""
    return secrets.randbits(48)


def weighted_sum(numbers: np.ndarray, seed: int) -> np.ndarray:
    """The sum of its rows, each times a drawn number: a few numbers tell whether very many are the right ones."""
    return _drawn_weights(len(numbers), seed) @ numbers


@functools.lru_cache(maxsize=4)  # a case has hundreds of vectors of one size, and to draw takes most of their time
def _drawn_weights(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n)
