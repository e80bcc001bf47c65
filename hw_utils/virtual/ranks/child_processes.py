"""Processes that a rank forks itself, as the workers of a DataLoader: they are no part of the simulation.

There the clock is the real one, and what was put in the place of `time`, `random`, `os.environ` and torch.distributed
is gone. What a process inherits stays: the rank's variables and the states of its random numbers.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np

_inside: list[Callable[[], None]] = []  # what undoes the simulations that this process is in, the last one first


@contextmanager
def left_by(undo: Callable[[], None]):
    """While it lasts, a child of this process begins with `undo()`."""
    _inside.append(undo)
    try:
        yield
    finally:
        if _inside:
            _inside.pop()


def is_in_simulation() -> bool:
    """Whether this process carries ranks; a child that one of them has forked does not."""
    return bool(_inside)


def result_of(worker: Callable[..., Any], rank: int, world_size: int, args: tuple) -> Any:
    """What the worker returns; a child of the rank's that comes back from there, by whatever way, ends.

    Python 3.11 needs a C stack of its own for a call with `*`, and a switch of greenlets copies that.
    """
    status = 1
    try:
        result = worker(rank, world_size, *args) if args else worker(rank, world_size)
        status = 0
        return result
    except BaseException:
        if not _inside:
            traceback.print_exc()
        raise
    finally:
        if not _inside:
            sys.stdout.flush()
            os._exit(status)


def _begin() -> None:
    if not _inside:
        return
    numbers, arrays, variables = random.getstate(), np.random.get_state(), dict(os.environ)
    while _inside:
        _inside.pop()()
    random.setstate(numbers)
    np.random.set_state(arrays)
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
