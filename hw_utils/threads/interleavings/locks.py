"""Locks whose waiting ranks give their turn away, in place of `threading`'s for the length of a run.

Barriers, conditions, events, semaphores and queues need no twin: Python builds all of them on the one lock. Only
`queue.SimpleQueue` waits in C; its twin is the one that Python itself takes where it has no such module.
"""

from __future__ import annotations

import _thread
import functools
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field
from types import CellType, FunctionType
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
    `students` are functions and classes. What their code took from `threading` before follows, wherever it keeps it: in
    globals, classes, defaults, closures, fields of dataclasses, lists, objects; and so does a lock, or what is built on
    one, that is kept there.
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

    swaps = _swaps(make_lock, now_s, sleep)
    managed_of = {id(real): managed for _, name, real, managed in swaps if name != "_time"}
    kept = [(put, value) for put, value in _kept(students) if id(value) in managed_of or type(value) in _ANEW]
    for space, name, _, managed in swaps:
        space[name] = managed
    try:
        made: dict[int, Any] = {}
        for put, value in kept:
            put(managed_of[id(value)] if id(value) in managed_of else _anew(value, made))
        yield
    finally:
        for space, name, real, _ in swaps:
            space[name] = real
        for put, value in kept:
            put(value)


def _swaps(make_lock: Any, now_s: Any, sleep: Any) -> list[tuple[dict[str, Any], str, Any, Any]]:
    """(where, name, real, managed): the names in `threading`, `time` and `queue`."""
    return [
        *((vars(threading), name, getattr(threading, name), make_lock) for name in ("Lock", "_allocate_lock")),
        (vars(threading), "RLock", threading.RLock, threading._PyRLock),
        (vars(threading), "_time", threading._time, now_s),
        (vars(time), "sleep", time.sleep, sleep),
        (vars(queue), "SimpleQueue", queue.SimpleQueue, queue._PySimpleQueue),
    ]


def _kept(students: tuple[Any, ...]) -> Iterator[tuple[Callable[[Any], None], Any]]:
    """(how another one is put in its place, value) of all that the students' code keeps: their globals, and what hangs
    on functions, classes and objects that are of these globals."""
    spaces = _global_spaces(students)
    own, seen, ahead = {id(space) for space in spaces}, set(), [*spaces, *students]
    done = []  # kept, so that nothing else takes its number

    @functools.cache
    def is_own_kind(kind: type) -> bool:
        members = (getattr(member, "__func__", member) for member in vars(kind).values())
        return any(id(getattr(member, "__globals__", None)) in own for member in members)

    def is_own(value: Any) -> bool:
        """Whether it is a function of these globals, a class with such a method, or an object of such a class."""
        if isinstance(value, FunctionType):
            return id(value.__globals__) in own
        return is_own_kind(value if isinstance(value, type) else type(value))

    while ahead:
        thing = ahead.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        done.append(thing)
        for put, value in _parts(thing):
            yield put, value
            if isinstance(value, _HOLDERS) or is_own(value):
                ahead.append(value)


_HOLDERS = (list, dict, functools.partial, Field)
_MANY = 10_000  # entries: of a list or dictionary that holds data


def _parts(thing: Any) -> Iterator[tuple[Callable[[Any], None], Any]]:
    """What hangs on one thing, and how another one is put in its place."""
    if isinstance(thing, list | dict):
        if isinstance(thing, defaultdict):
            yield functools.partial(setattr, thing, "default_factory"), thing.default_factory
        entries = enumerate(thing) if isinstance(thing, list) else list(dict.items(thing))
        for key, value in entries if len(thing) < _MANY else ():
            yield functools.partial(_put_in_container, thing, key), value
    elif isinstance(thing, FunctionType):
        yield from _of_a_function(thing)
    elif isinstance(thing, functools.partial):
        for k, value in enumerate([thing.func, *thing.args]):
            yield functools.partial(_put_in_partial, thing, k), value
    elif isinstance(thing, CellType | Field):
        name = "cell_contents" if isinstance(thing, CellType) else "default_factory"
        yield functools.partial(setattr, thing, name), getattr(thing, name, None)  # an empty cell has no contents
    elif isinstance(thing, type):
        for name, value in list(vars(thing).items()):
            if isinstance(value, staticmethod):
                yield functools.partial(_put_in_class, thing, name, staticmethod), value.__func__
            else:
                yield functools.partial(_put_in_class, thing, name, None), value
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield from _of_a_function(function)  # a dataclass makes some that are of no globals of the students
    else:
        for name, value in list(vars(thing).items()) if hasattr(thing, "__dict__") else ():
            yield functools.partial(object.__setattr__, thing, name), value  # it may be frozen


def _of_a_function(function: FunctionType) -> Iterator[tuple[Callable[[Any], None], Any]]:
    for k, value in enumerate(function.__defaults__ or ()):
        yield functools.partial(_put_in_defaults, function, k), value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield functools.partial(function.__kwdefaults__.__setitem__, name), value
    for cell in function.__closure__ or ():
        yield from _parts(cell)


def _put_in_container(thing: list | dict, key: Any, value: Any) -> None:
    if isinstance(thing, dict):
        dict.__setitem__(thing, key, value)
    elif key < len(thing):  # else a rank has taken it out
        list.__setitem__(thing, key, value)


def _put_in_class(kind: type, name: str, wrap: type | None, value: Any) -> None:
    type.__setattr__(kind, name, wrap(value) if wrap else value)


def _put_in_defaults(function: FunctionType, k: int, value: Any) -> None:
    function.__defaults__ = (*function.__defaults__[:k], value, *function.__defaults__[k + 1 :])


def _put_in_partial(thing: functools.partial, k: int, value: Any) -> None:
    function, *args = [*[thing.func, *thing.args][:k], value, *thing.args[k:]]
    thing.__setstate__((function, tuple(args), thing.keywords, vars(thing)))


def _global_spaces(students: tuple[Any, ...]) -> list[dict[str, Any]]:
    spaces: dict[int, dict[str, Any]] = {}
    for student in students:
        for member in [student, *(vars(student).values() if isinstance(student, type) else ())]:
            member = getattr(member, "__func__", member)
            space = getattr(member, "__globals__", None)
            if space is not None and space is not vars(threading):
                spaces[id(space)] = space
    return list(spaces.values())


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
