"""Ranks that stand in a wait of their own: for a lock, an event, a queue, a thread that waits as well.

Only what the system shows of a process is asked (Linux): every thread of the program waits on a futex, with no time
limit, and has not been switched since; gloo's and torch's own threads sleep, so no transfer is under way whose end
could call the program back; it has no children; and no signal would be taken by it. A thread that sleeps for a while,
computes, or waits for a file or a socket makes a rank one that may go on; so do threads of torch's without a name, as
gloo's in torch 2.10.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

from hw_utils.virtual.stuck_threads import LOOK_S, LOOKS, asleep, children_of, looks_for

SAMPLER = "hw_utils_sample"  # the name of the thread that notes where the others are
_NOT_THE_PROGRAMS = {SAMPLER, "gloo_tcp_loop", "pt_gloo_runloop", "pt_tcpstore_uv"}
_COULD_END_IT = ("SIGHUP", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGVTALRM", "SIGPROF", "SIGCHLD", "SIGIO")
_CAUGHT = sum(1 << getattr(signal, name) - 1 for name in _COULD_END_IT if hasattr(signal, name))


def name_this_thread(name: str) -> None:
    """By which the system shows it."""
    with suppress(OSError), open("/proc/thread-self/comm", "w") as file:
        file.write(name)


def standing(pid: int) -> tuple | None:
    """How often each of the program's threads was switched, if all of them wait for each other; else None."""
    seen = []
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(line for line in file if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) & _CAUGHT or children_of(pid):
            return None
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/comm") as file:
                name = file.read().strip()
            look = asleep(pid, int(thread))
            if look is None:
                return None
            if name in _NOT_THE_PROGRAMS:
                continue
            with open(f"/proc/{pid}/task/{thread}/syscall") as file:
                if looks_for(file.read().split()) != LOOKS:
                    return None
            seen.append((thread, *look))
    except (OSError, IndexError, ValueError, StopIteration):
        return None
    return tuple(seen)


class OwnWaits:
    """What some ranks looked like; `all_stand` is asked again and again."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple] = {}
        self.next_look_s, self.n_looks = 0.0, 0

    def all_stand(self, pids: Iterable[int]) -> bool:
        """Whether every one of these processes has stood in such a wait for several looks."""
        pids = tuple(pids)
        if not all(pids) or not os.path.isdir("/proc/self/task"):
            return False
        if time.perf_counter() >= self.next_look_s:
            self.next_look_s = time.perf_counter() + LOOK_S
            now = _of_all(pids)
            self.n_looks = self.n_looks + 1 if now is not None and now == self.seen else 0
            self.seen = now or {}
        return self.n_looks >= LOOKS and set(self.seen) == set(pids)


def _of_all(pids: tuple[int, ...]) -> dict[int, tuple] | None:
    """What each looks like; None if one of them does not stand: the others are not looked at then."""
    found: dict[int, tuple] = {}
    for pid in pids:
        look = standing(pid)
        if look is None:
            return None
        found[pid] = look
    return found
