"""Locks whose waiting ranks give their turn away, in place of `threading`'s for the length of a run.

Barriers, conditions, events, semaphores and queues need no twin: Python builds all of them on the one lock. Only
`queue.SimpleQueue` waits in C; its twin is the one that Python itself takes where it has no such module.
"""

from __future__ import annotations

import _thread
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hw_utils.threads.turns import Turns

SHORT_S = 1.0  # what a loaded machine may take from one step to the next
_LOCK, _RLOCK = type(_thread.allocate_lock()), type(threading.RLock())


class ManagedLock:
    """What `threading.Lock()` gives on a rank of `turns`."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._held = turns, False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As a lock's; one with a timeout gives up when no other rank can run, and a rank's first short one at once:
        the others may be slower than that. Who looks again after it meets them all the same."""
        turns = self._turns
        if self._held and not turns.stopping:
            if not blocking or turns.rank() < 0:
                return False
            if 0 <= timeout < SHORT_S and turns.is_first_limit():
                turns.skipped_s += timeout
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
    """Within it, locks, barriers, conditions, events, semaphores and queues are made of `ManagedLock`.

    Only for `turns`' ranks and the thread `turns.caller`, at first the calling one; all others go on with real ones.
    `students` are functions and classes: what their globals import from `threading` follows, and so does a lock, or
    what is built on one, that is kept in a global or in a class.
    """
    turns.caller, real_lock = _thread.get_ident(), _thread.allocate_lock
    real_time, real_sleep = threading._time, time.sleep

    def ours() -> bool:
        return turns.rank() >= 0 or _thread.get_ident() == turns.caller

    def make_lock():
        return ManagedLock(turns) if ours() else real_lock()

    def now_s() -> float:
        return real_time() + (turns.skipped_s if ours() else 0.0)

    def sleep(seconds: float) -> None:
        if turns.rank() < 0:
            real_sleep(seconds)
        else:  # no order of threads can be had by sleeping: it is a place to switch like any other
            turns.skipped_s += seconds
            turns.pause()

    spaces = _global_spaces(students)
    made_early = [(space, name, value) for space in [*spaces, *_classes(students)] for name, value in _locks_in(space)]
    swaps = _swaps(make_lock, now_s, sleep, spaces)
    for space, name, _, managed in swaps:
        _put(space, name, managed)
    try:
        made: dict[int, Any] = {}
        for space, name, value in made_early:
            _put(space, name, _anew(value, made))
        yield
    finally:
        for space, name, real, _ in [*swaps, *((*early, None) for early in made_early)]:
            _put(space, name, real)


def _swaps(make_lock: Any, now_s: Any, sleep: Any, spaces: list[dict[str, Any]]) -> list[tuple[Any, str, Any, Any]]:
    """(where, name, real, managed): the names in `threading`, `time` and `queue`, and the student's for them."""
    found = [(vars(threading), name, getattr(threading, name), make_lock) for name in ("Lock", "_allocate_lock")]
    found.append((vars(threading), "RLock", threading.RLock, threading._PyRLock))
    found.append((vars(threading), "_time", threading._time, now_s))
    found.append((vars(time), "sleep", time.sleep, sleep))
    found.append((vars(queue), "SimpleQueue", queue.SimpleQueue, queue._PySimpleQueue))
    students = {id(real): (real, managed) for _, name, real, managed in found if name != "_time"}
    for space in spaces:
        for name, value in list(space.items()):
            if id(value) in students:
                found.append((space, name, *students[id(value)]))
    return found


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
    return [(name, value) for name, value in list(names.items()) if type(value) in _ANEW]


def _anew(value: Any, made: dict[int, Any]) -> Any:
    """Another one that nobody has used yet, of the locks that there are now; the same for the same, see `made`."""
    if id(value) not in made:
        made[id(value)] = _ANEW[type(value)](value, made)
    return made[id(value)]


# Of each kind how one is made like another; by names that are looked up then.
_ANEW = {
    _LOCK: lambda lock, made: threading.Lock(),
    _RLOCK: lambda lock, made: threading.RLock(),
    threading.Condition: lambda condition, made: threading.Condition(_anew(condition._lock, made)),
    threading.Event: lambda event, made: threading.Event(),
    threading.Semaphore: lambda semaphore, made: threading.Semaphore(semaphore._value),
    threading.BoundedSemaphore: lambda semaphore, made: threading.BoundedSemaphore(semaphore._initial_value),
    threading.Barrier: lambda barrier, made: threading.Barrier(barrier.parties, barrier._action, barrier._timeout),
    queue.SimpleQueue: lambda waiting, made: queue.SimpleQueue(),
    **{kind: lambda waiting, made: type(waiting)(waiting.maxsize)
       for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue)},
}  # fmt: skip


def _put(space: Any, name: str, value: Any) -> None:
    if isinstance(space, type):
        setattr(space, name, value)
    else:
        space[name] = value
