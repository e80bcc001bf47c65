"""Locks whose waiting ranks give their turn away, in place of `threading`'s for the length of a run.

Barriers, conditions, events, semaphores and queues need no twin: Python builds all of them on the one lock.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hw_utils.turns import Turns

_LOCK, _RLOCK = type(_thread.allocate_lock()), type(threading.RLock())


class ManagedLock:
    """What `threading.Lock()` gives on a rank of `turns`."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._held = turns, False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As a lock's; one with a timeout gives up when no other rank can run."""
        turns = self._turns
        if self._held and not turns.stopping:
            if not blocking or turns.rank() < 0:
                return False
            if not turns.park(self._is_free, self, has_limit=timeout >= 0):
                turns.skipped_s += timeout  # nobody could run before: the time has passed
                return False
        self._held = True
        return True

    def _is_free(self) -> bool:
        return not self._held

    def release(self) -> None:
        if not self._held and not self._turns.stopping:
            raise RuntimeError("release unlocked lock")
        self._held = False

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def managed_locks(turns: Turns, *students: Any) -> Iterator[None]:
    """Within it, `threading` makes its locks, barriers, conditions, events and semaphores of `ManagedLock`.

    Only for `turns`' ranks and the calling thread; the kernel's own threads go on with real ones.
    `students` are functions and classes: what their globals import from `threading` follows, and so does a lock
    that is kept in a global or in a class.
    """
    caller, real_lock, real_time = _thread.get_ident(), _thread.allocate_lock, threading._time

    def ours() -> bool:
        return turns.rank() >= 0 or _thread.get_ident() == caller

    def make_lock():
        return ManagedLock(turns) if ours() else real_lock()

    def now_s() -> float:
        return real_time() + (turns.skipped_s if ours() else 0.0)

    spaces = _global_spaces(students)
    made_early = [(space, name, value) for space in [*spaces, *_classes(students)] for name, value in _locks_in(space)]
    swaps = _swaps(make_lock, now_s, spaces)
    for space, name, _, managed in swaps:
        _put(space, name, managed)
    try:
        for space, name, value in made_early:
            _put(space, name, make_lock() if type(value) is _LOCK else threading.RLock())
        yield
    finally:
        for space, name, real, _ in [*swaps, *((*early, None) for early in made_early)]:
            _put(space, name, real)


def _swaps(make_lock: Any, now_s: Any, spaces: list[dict[str, Any]]) -> list[tuple[Any, str, Any, Any]]:
    """(where, name, real, managed): the names in `threading`, and the student's names for the same things."""
    managed = {"Lock": make_lock, "RLock": threading._PyRLock, "_allocate_lock": make_lock}
    swaps = [(vars(threading), name, getattr(threading, name), managed[name]) for name in managed]
    swaps.append((vars(threading), "_time", threading._time, now_s))
    for space in spaces:
        for name, value in list(space.items()):
            swaps += [(space, name, value, managed[key]) for key in managed if value is getattr(threading, key)][:1]
    return swaps


def _classes(students: tuple[Any, ...]) -> list[type]:
    return [student for student in students if isinstance(student, type)]


def _global_spaces(students: tuple[Any, ...]) -> list[dict[str, Any]]:
    spaces: dict[int, dict[str, Any]] = {}
    for student in students:
        for member in [student, *(vars(student).values() if isinstance(student, type) else ())]:
            member = getattr(member, "__func__", member)
            space = getattr(member, "__globals__", None)
            if space is not None and space is not vars(threading):
                spaces[id(space)] = space
    return list(spaces.values())


def _locks_in(space: Any) -> list[tuple[str, Any]]:
    names = vars(space) if isinstance(space, type) else space
    return [(name, value) for name, value in list(names.items()) if type(value) in (_LOCK, _RLOCK)]


def _put(space: Any, name: str, value: Any) -> None:
    if isinstance(space, type):
        setattr(space, name, value)
    else:
        space[name] = value
