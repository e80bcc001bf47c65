"""What carries the clock of one of a rank's threads to another, where the machine lets the other one run late."""

import queue
import sys
import threading

import pytest

from hw_utils.virtual.multiprocess.thread_clocks import Before

NEVER_S = 1000.0


class Clocks(threading.local):
    """A clock for each thread, which the test sets."""

    clock_s = 0.0

    def catch_up(self, at_s: float) -> None:
        self.clock_s = max(self.clock_s, at_s)


@pytest.fixture
def clocks():
    """While it lasts, a thread runs on until it waits: no other one takes its turn from it."""
    clocks, before = Clocks(), sys.getswitchinterval()
    with Before(clocks).installed():
        yield clocks
    sys.setswitchinterval(before)


def handed_over_at(clocks, kind, hand_over, take, n_takes: int) -> list[float]:
    """When the first thread has each of what a second one hands over at 1, 2, ... seconds."""
    waits, seen = threading.Lock(), []
    waits.acquire()

    def produce() -> None:
        with waits:  # the first thread is about to wait
            sys.setswitchinterval(NEVER_S)
        for second in range(1, n_takes + 1):
            clocks.clock_s = float(second)
            hand_over(kind)

    thread = threading.Thread(target=produce)
    thread.start()
    sys.setswitchinterval(NEVER_S)  # from here to the wait nobody else runs
    waits.release()
    for _ in range(n_takes):
        take(kind)
        seen.append(clocks.clock_s)
    thread.join()
    return seen


def test_a_thread_that_was_woken_goes_on_when_it_was_woken_though_it_runs_late(clocks):
    assert handed_over_at(clocks, queue.Queue(), lambda q: q.put(0), lambda q: q.get(), 3) == [1.0, 2.0, 3.0]


def test_whoever_takes_an_item_is_not_before_it_came(clocks):
    items = queue.Queue()
    for second in range(3):
        clocks.clock_s = float(second)
        items.put(second)
    clocks.clock_s = 0.5
    with pytest.MonkeyPatch.context() as patch:  # as for a consumer whose item another one took: the lock says nothing
        patch.setattr(Before, "take", lambda *_: None)
        assert [(items.get(), clocks.clock_s) for _ in range(3)] == [(0, 0.5), (1, 1.0), (2, 2.0)]


def test_a_thread_has_the_lock_no_sooner_than_who_woke_it_lets_it_go(clocks):
    def hand_over(condition) -> None:
        with condition:
            condition.notify()
            clocks.clock_s += 0.5

    def take(condition) -> None:
        with condition:
            condition.wait()

    assert handed_over_at(clocks, threading.Condition(), hand_over, take, 1) == [1.5]
