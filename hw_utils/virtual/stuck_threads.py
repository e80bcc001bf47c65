"""A process that stands still for good: each of its threads waits for another one of them."""

from __future__ import annotations

import _thread
import os
import threading
from contextlib import contextmanager, suppress

LOOK_S = 0.05  # how often a silent process is looked at
LOOKS = 3  # with nothing moved in between: it stands
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine if hasattr(os, "uname") else "", "")


def standing(pid: int, others: set[int | None]) -> tuple | None:
    """How often each thread of a process was switched, if all of them wait for each other for good; else None.

    For good: in a futex without a timeout, which only another thread of the process can end, and without children.
    others: threads that are not the program's.
    """
    seen = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            if int(thread) in others:
                continue
            folder = f"/proc/{pid}/task/{thread}"
            with open(f"{folder}/children") as file:
                if file.read().strip():
                    return None
            with open(f"{folder}/syscall") as file:
                call = file.read().split()
            if not _FUTEX or call[0] != _FUTEX or int(call[4], 16):
                return None
            with open(f"{folder}/status") as file:
                seen.append((thread, *(line for line in file if "ctxt_switches" in line)))
    except (OSError, IndexError, ValueError):
        return None
    return tuple(seen)


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


@contextmanager
def watched(lamp, tell_time):
    """Ends this process if it stands still: `lamp[1]` is 1 then, and its starter knows what to do.

    A rank that waits in C++ code for others holds the thread in which they would run; nothing in this process can
    change that. lamp: None where the process is not ours to end, or the system does not show what threads do.
    tell_time: called with every look.
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
                if looks == LOOKS:
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
