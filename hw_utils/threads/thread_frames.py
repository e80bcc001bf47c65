"""What a thread stands in, read from its frames, and how to get it out of there.

A thread in `barrier.wait()`, `condition.wait()`, `event.wait()`, `queue.get()` stands in one line of `threading`:
`waiter.acquire()`. One in `with lock:` stands at that instruction of its own code.
"""

from __future__ import annotations

import dis
import functools
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

from hw_utils.core.source.students_files import students_line

_WAITING_FILES = {threading.__file__, queue.__file__}
_LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()))


@dataclass(frozen=True)
class Stand:
    """Where a thread stands, and what it is blocked in, if anything."""

    file: str  # the innermost line of the student's code
    line: int
    call: str = ""  # "Barrier.wait", "Lock.acquire"; empty: it is running
    thing: Any = None  # the barrier, condition, lock
    locks: tuple[Any, ...] = ()  # to release, so that the thread wakes

    @property
    def blocked(self) -> bool:
        return bool(self.call)


def stand_of(frame: FrameType) -> Stand:
    """Where the thread of this frame stands. Blocked means: until another thread does something, and for ever else."""
    file, line = students_line(frame)
    if frame.f_code.co_filename in _WAITING_FILES:
        return _in_threading(frame, file, line)
    if not _is_lock_call(frame):
        return Stand(file, line)
    locks = tuple(lock for lock in _locks_near(frame) if is_held(lock))
    return Stand(file, line, "Lock.acquire", locks[0], locks) if locks else Stand(file, line)


def _in_threading(frame: FrameType, file: str, line: int) -> Stand:
    waiter, outer = frame.f_locals.get("waiter"), frame
    if waiter is None or frame.f_locals.get("timeout") is not None:
        return Stand(file, line)  # it goes on by itself
    if not is_held(waiter):
        return Stand(file, line)  # it has been woken, and is on its way
    while outer.f_back is not None and outer.f_back.f_code.co_filename in _WAITING_FILES:
        outer = outer.f_back
    thing = outer.f_locals.get("self")
    return Stand(file, line, f"{type(thing).__name__}.{outer.f_code.co_name}", thing, (waiter,))


def is_held(lock: Any) -> bool:
    """Whether a lock or an RLock is held by anyone."""
    return repr(lock).startswith("<locked")


@functools.lru_cache(maxsize=1000)
def _instructions(code: CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    """The instructions, and the place of each offset among them."""
    listed = list(dis.get_instructions(code))
    return listed, {i.offset: n for n, i in enumerate(listed)}


def _is_lock_call(frame: FrameType) -> bool:
    """Whether the instruction it stands at enters a `with` block or calls `acquire`."""
    listed, places = _instructions(frame.f_code)
    here = places.get(frame.f_lasti)
    if here is None:
        return False
    before = listed[max(0, here - 6) : here + 1]
    if "WITH" in listed[here].opname or any(i.opname == "LOAD_SPECIAL" for i in before[-3:]):
        return True
    return "CALL" in listed[here].opname and any(i.argval in ("acquire", "__enter__") for i in before)


def _locks_near(frame: FrameType) -> Iterator[Any]:
    """Locks within three steps of the frame's variables: its own, attributes, entries of lists and dictionaries."""
    named = (frame.f_globals[n] for n in frame.f_code.co_names if n in frame.f_globals)
    reachable, seen = [*frame.f_locals.values(), *named], set()
    for _ in range(3):
        further = []
        for value in reachable[:1000]:
            if id(value) not in seen:
                seen.add(id(value))
                if isinstance(value, _LOCK_TYPES):
                    yield value
                further += _inside(value)
        reachable = further


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, ModuleType) or callable(value):
        return []
    return [*getattr(value, "__dict__", {}).values(), *vars(type(value)).values()]


def free(stand: Stand) -> None:
    """Wakes a blocked thread, which should have an exception waiting for it."""
    for lock in stand.locks:
        if isinstance(lock, _LOCK_TYPES[0]):
            if lock.locked():
                lock.release()
        elif is_held(lock):
            lock._release_save()  # whoever holds it: an RLock's release() is for its owner only
