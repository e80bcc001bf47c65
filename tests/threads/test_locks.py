"""Locks under a scheduler: each kind gives the turn away, wherever it was taken from, and is real again afterwards."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from queue import Queue, SimpleQueue
from threading import Condition, Lock
from typing import Any

import pytest

from hw_utils.threads.interleavings.explorer import explore
from hw_utils.threads.interleavings.locks import managed_locks
from hw_utils.threads.turns import Turns
from tests.threads.test_interleavings import Counter, add_safely, values

LOCK = threading.Lock()


@dataclass
class Board:
    lock: Any = field(default_factory=threading.Lock)

    def open(self):
        return self.lock


def lock_by_default(lock=threading.Lock(), make=threading.Lock):  # noqa: B008, that is the point
    return lock if make() else None


def _enclosed():
    make = threading.Lock
    return lambda: make()


@dataclass(frozen=True)
class Frozen:
    lock: Any
    make = staticmethod(threading.Lock)

    def open(self):
        return self.lock


FROZEN, TAKEN = Frozen(threading.Lock()), [threading.Lock()]
BOARD, LOCKS, MAKERS = Board(), [threading.Lock()], defaultdict(threading.Lock)
make_enclosed = _enclosed()
make_in_partial = partial(lambda make: make(), threading.Lock)
EARLY = {  # what was taken from `threading` before the run, and is kept somewhere
    "in a dataclass": lambda: Board().lock,
    "in an object": lambda: BOARD.open(),
    "in a frozen object": lambda: FROZEN.open(),
    "in a staticmethod": lambda: Frozen.make(),
    "taken out": lambda: TAKEN.pop() if TAKEN else threading.Lock(),
    "in a list": lambda: LOCKS[0],
    "in a defaultdict": lambda: MAKERS["a"],
    "a default": lambda: lock_by_default(),
    "a made default": lambda: lock_by_default.__defaults__[1](),
    "enclosed": lambda: make_enclosed(),
    "in a partial": lambda: make_in_partial(),
}
KINDS = ["module", "class", "imported", "RLock", "Condition", "Semaphore", "Event", "Queue", "SimpleQueue", *EARLY]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_lock_gives_the_turn_away(kind):
    class Shared:
        lock = threading.RLock()

        def __init__(self):
            self.value = 0
            self.imported, self.rlock, self.condition = Lock(), threading.RLock(), Condition()
            self.semaphore, self.event, self.queue = threading.Semaphore(1), threading.Event(), Queue()
            if kind == "SimpleQueue":  # it waits in C, where no turn can be given away
                self.queue = SimpleQueue()
            self.queue.put(None)
            self.meet, self.early = threading.Barrier(2), EARLY.get(kind, threading.Lock)()

        def add(self, rank):
            if kind == "Event":
                self.value += 1
                return self.event.wait() if rank else self.event.set()
            if kind in ("Queue", "SimpleQueue"):
                token = self.queue.get()
                self.value += 1
                return self.queue.put(token)
            locks = {"module": LOCK, "class": Shared.lock, "imported": self.imported, "RLock": self.rlock}
            with {**locks, "Condition": self.condition, "Semaphore": self.semaphore}.get(kind, self.early):
                self.value += 1

    def program(shared, rank, note):
        shared.add(rank)
        shared.meet.wait()
        return shared.value

    explored = explore(lambda: Shared(), program, 2, n_interleavings=150)
    assert all(outcome.kind == "returned" for outcome in explored.outcomes), explored.outcomes[-1].text
    assert [2, 2] in values(explored)
    assert len(explored.outcomes) == (2 if kind == "Event" else 1)  # an event protects nothing


def test_locks_are_the_real_ones_again_afterwards():
    real = threading.Lock, threading.RLock, threading._allocate_lock, threading._time, time.sleep
    n_threads = threading.active_count()
    explore(lambda: Counter(threading.Lock()), add_safely, 2, n_interleavings=20)
    with pytest.raises(ZeroDivisionError), Turns(1) as turns, managed_locks(turns):
        raise ZeroDivisionError
    assert (threading.Lock, threading.RLock, threading._allocate_lock, threading._time, time.sleep) == real
    assert type(LOCK) is type(BOARD.lock) is type(LOCKS[0]) is type(make_enclosed()) is type(threading.Lock())
    assert threading.active_count() == n_threads
