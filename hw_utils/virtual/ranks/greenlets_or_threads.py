"""What carries the ranks of the virtual cluster: greenlets, or threads of which one runs at a time.

A switch between greenlets takes under 1 us, between threads some 80 us; but autograd keeps its state per OS thread,
so code that communicates inside a backward pass (DistributedDataParallel, hooks) gets threads.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import greenlet

PATIENCE_S = 0.5  # for a rank to end once the run is over: it is in a loop of its own, or in C++ code
STACK_BYTES = 16 * 2**20  # of address space; memory is used only where the stack is


class CarryingThreads:
    """The OS threads that carry ranks; a kernel has others, which are no part of the run."""

    have_clocks = False  # of their own, beside their ranks' first ones

    def __init__(self) -> None:
        self.idents = {threading.get_ident()}

    def add(self) -> None:
        """The calling one is one of them."""
        self.idents.add(threading.get_ident())

    def discard(self) -> None:
        """The calling one ends: another one, which is none of them, may get its number."""
        self.idents.discard(threading.get_ident())

    def carries(self) -> bool:
        """Whether the calling one is one of them."""
        return threading.get_ident() in self.idents

    def has_others(self) -> bool:
        """Whether this process has threads that carry no ranks, as a kernel's; ranks that start some have processes."""
        return any(t.ident not in self.idents and t is not threading.main_thread() for t in threading.enumerate())


class Greenlets:
    """All ranks on one OS thread."""

    is_shared = True  # grad mode and autograd's state are those of the one thread
    Resume = list

    def __init__(self, world_size: int, body: Callable[[int], None], stop: type[BaseException]) -> None:
        self.world_size, self.body, self.stop = world_size, body, stop
        self.tasks: list[greenlet.greenlet] = []
        self.resume: list[Callable[[int], object]] = []  # [who](rank) goes there, until somebody comes back

    def host(self, schedule: Callable[[Greenlets], None]) -> None:
        """Runs `schedule(self)` beside the ranks, until it returns.

        All begin at one place of this function, which then waits there. So the frames beneath a rank's first one stay
        what they were: torch, which writes down the whole stack for every error it raises, would crash in others.
        """
        self.home = greenlet.getcurrent()
        self.scheduler = greenlet.greenlet(lambda _: schedule(self))
        ranks = [greenlet.greenlet(self._run, self.scheduler) for _ in range(self.world_size)]
        self.tasks = [*ranks, self.scheduler]
        self.resume = self.Resume(task.switch for task in self.tasks)
        for rank, task in enumerate(list(self.tasks)):
            task.switch(rank)

    def _run(self, rank: int) -> None:
        with suppress(self.stop):  # it may end before its first turn
            self.home.switch()
            self.body(rank)

    def frame_of(self, rank: int):
        """The line that the rank is at, if it is not the running one."""
        return None

    def close(self) -> None:
        """Unwinds the ranks that are still in the middle of something."""
        for task in self.tasks:
            if task is not self.scheduler and not task.dead:
                task.throw(self.stop)


class Threads:
    """Every rank on an OS thread of its own; a lock each, and only one of them open."""

    is_shared = False

    def __init__(self, world_size: int, body: Callable[[int], None], stop: type[BaseException]) -> None:
        self.body = body
        self.locks = [threading.Lock() for _ in range(world_size + 1)]
        for lock in self.locks:
            lock.acquire()
        self.threads: list[threading.Thread | None] = [None] * world_size
        self.stop, self.running, self.is_out = stop, 0, False  # is_out: a rank runs, and the scheduler waits
        self.resume = [partial(self._go, who) for who in range(world_size + 1)]

    def host(self, schedule: Callable[[Threads], None]) -> None:
        """Runs `schedule(self)`."""
        schedule(self)

    def _run(self, rank: int) -> None:
        self.locks[rank].acquire()
        self.body(rank)
        self.threads[rank] = None
        self.locks[-1].release()

    def _go(self, who: int, rank: int) -> None:
        if who < len(self.threads) and self.threads[who] is None:
            self._start(who)
        self.running, self.is_out = who, who < len(self.threads)
        self.locks[who].release()
        self.locks[rank].acquire()
        self.running, self.is_out = rank, rank < len(self.threads)

    def _start(self, who: int) -> None:
        before = threading.stack_size(STACK_BYTES)
        try:
            self.threads[who] = threading.Thread(target=self._run, args=(who,), daemon=True, name=f"rank {who}")
            self.threads[who].is_rank = True
            self.threads[who].start()
        finally:
            threading.stack_size(before)

    def frame_of(self, rank: int):
        thread = self.threads[rank]
        return sys._current_frames().get(thread.ident) if thread is not None else None

    def close(self) -> None:
        """Unwinds the ranks that are still in the middle of something, the running one first.

        A time limit comes while one runs. It ends where it communicates next, or where it is; one that does neither is
        left as it is, with those after it: its process ends with the run.
        """
        if self.is_out and not self._comes_home(self.running):
            return
        for rank, thread in enumerate(self.threads):
            if thread is not None:
                self.locks[rank].release()
                if not self._comes_home(rank):
                    return
                thread.join()

    def _comes_home(self, rank: int) -> bool:
        """Whether a rank ends, by itself or when it is told to."""
        if self.locks[-1].acquire(timeout=PATIENCE_S):
            return True
        thread = self.threads[rank]
        if thread is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(self.stop))
        return self.locks[-1].acquire(timeout=PATIENCE_S)
