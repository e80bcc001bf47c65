"""A process that stands still: each of its threads waits for another one of them, or for another process."""

from __future__ import annotations

import _thread
import math
import os
import threading
from contextlib import contextmanager, suppress
from typing import NamedTuple

LOOK_S = 0.05  # how often a silent process is looked at
LOOKS = 3  # with nothing moved in between: it stands
LOOKS_OUTSIDE = 10  # if it waits for the system: a packet or a disk may take a while
LOOKS_FOR_GOOD = 200  # the same where nothing else can be tried: what ends the wait may be a slow download
_MACHINE = os.uname().machine if hasattr(os, "uname") else ""
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(_MACHINE, "")
# Calls that another process may have to end, as another rank, and the place of their timeout, None without one:
# read, flock, fcntl, accept, accept4, recvfrom, recvmsg; epoll_wait, epoll_pwait, poll, ppoll, select, pselect6
_WAITS = {
    "x86_64": {
        **dict.fromkeys(("0", "73", "72", "43", "288", "45", "47")),
        "232": 4, "281": 4, "7": 3, "271": 3, "23": 5, "270": 5,
    },
    "aarch64": {**dict.fromkeys(("63", "32", "25", "202", "242", "207", "212")), "22": 4, "73": 3, "72": 5},
}.get(_MACHINE, {})  # fmt: skip
_NO_TIMEOUT = {0, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF}  # a null pointer, or -1


class Still(NamedTuple):
    """How often each thread of a process and of its children was switched, and how many looks say that it stands."""

    switches: tuple
    looks: int
    is_parent: bool = False  # of processes that sleep; one of them could end the wait


def looks_for(call: list[str]) -> int:
    """How many looks say that a thread in this system call stands; 0 if it may go on by itself."""
    if _FUTEX and call[0] == _FUTEX:
        return 0 if int(call[4], 16) else LOOKS
    if call[0] not in _WAITS:
        return 0
    timeout = _WAITS[call[0]]
    return LOOKS_OUTSIDE if timeout is None or int(call[timeout], 16) in _NO_TIMEOUT else 0


def standing(pid: int, others: set[int | None]) -> Still | None:
    """What a process's threads look like if all of them wait, for each other or another process; else None.

    All wait without a timeout, and the process's children, as a loader's workers between two epochs, sleep.
    others: threads that are not the program's.
    """
    seen, most = [], LOOKS
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            if int(thread) in others:
                continue
            folder = f"/proc/{pid}/task/{thread}"
            with open(f"{folder}/syscall") as file:
                call = file.read().split()
            if not (looks := looks_for(call)):
                return None
            most = max(most, looks)
            with open(f"{folder}/status") as file:
                seen.append((thread, *(line for line in file if "ctxt_switches" in line)))
        children = children_of(pid)
        sleeping = [asleep(child, int(t)) for child in children for t in os.listdir(f"/proc/{child}/task")]
    except (OSError, IndexError, ValueError):
        return None
    return None if None in sleeping else Still((*seen, *sleeping), most, bool(children))


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, those that these have, and so on, if they have not ended."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found + [grandchild for child in found for grandchild in children_of(child)]


GONE = ("gone",)  # what is said of a thread that has ended


def asleep(pid: int, thread: int) -> tuple | None:
    """How often a thread was switched if it sleeps, whatever for; None if it runs; GONE if it has ended."""
    if not os.path.isdir("/proc/self/task"):
        return ()
    try:
        with open(f"/proc/{pid}/task/{thread}/status") as file:
            lines = [line for line in file if line.startswith("State") or "ctxt_switches" in line]
    except OSError:
        return GONE
    return None if "R (" in lines[0] else tuple(lines)


RUNS, STANDS, PAUSES, OUTSIDE = "runs", "stands for good", "stands for a while", "waits for the system"


def elsewhere(pid: int, here: set[int | None]) -> set[str]:
    """What the threads of a process do, but those in `here`."""
    if not os.path.isdir("/proc/self/task"):
        return {PAUSES}
    found = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        if int(thread) in here:
            continue
        with suppress(OSError), open(f"/proc/{pid}/task/{thread}/syscall") as file:  # it may end meanwhile
            call = file.read().split()
            if not call or call[0] == "running":
                found.add(RUNS)
            elif call[0] != _FUTEX:
                found.add(OUTSIDE)
            else:
                found.add(PAUSES if int(call[4], 16) else STANDS)
    return found


def _looks_to_give_up(now: Still, is_last: bool) -> float:
    waits_outside = now.looks > LOOKS
    if now.is_parent:  # what it waits for outside may be its children's
        return math.inf if is_last or waits_outside else LOOKS_OUTSIDE
    return LOOKS_FOR_GOOD if is_last and waits_outside else now.looks


@contextmanager
def watched(lamp, tell_time, *, is_last: bool):
    """Ends this process if it stands still: `lamp[1]` is 1 then, and its starter knows what to do.

    A rank that waits in C++ code or in the system for others holds the thread in which they would run; nothing in this
    process can change that.
    lamp: None where the process is not ours to end, or the system does not show what threads do.
    tell_time: called with every look. is_last: whether no other way to carry the ranks is left.
    """
    if lamp is None or not os.path.isdir("/proc/self/task"):
        yield
        return
    before = {int(thread) for thread in os.listdir("/proc/self/task")} - {os.getpid()}
    is_over, has_ended = _thread.allocate_lock(), _thread.allocate_lock()
    is_over.acquire()
    has_ended.acquire()

    def look() -> None:
        others = {*before, threading.get_native_id()}
        looks, last = 0, None
        try:
            while not is_over.acquire(timeout=LOOK_S):
                tell_time()
                now = standing(os.getpid(), others)
                looks = looks + 1 if now is not None and now == last else 0
                last = now
                if looks and looks >= _looks_to_give_up(now, is_last):
                    lamp[1] = 1
                    getattr(os, "_exit_now", os._exit)(1)
        finally:
            has_ended.release()

    _thread.start_new_thread(look, ())  # not one of threading's: the program may count those
    try:
        yield
    finally:
        is_over.release()
        has_ended.acquire()  # the lamp is put away next
