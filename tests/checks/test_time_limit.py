"""An answer that never ends is ended where no run has a time limit for it, and others are left alone."""

from __future__ import annotations

import signal
import threading

import pytest

from hw_utils import CheckFailed
from hw_utils.checks.time_limit import time_limit


def _for_ever(catches):
    while True:
        try:
            while True:
                pass
        except catches:
            catches = ()


@pytest.fixture
def timer():
    """A timer around the test, as pytest's own may be."""
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    before = signal.setitimer(signal.ITIMER_REAL, 1000.0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *before)


@pytest.mark.parametrize("catches", [(), Exception], ids=["plain", "one that catches the first end"])
def test_a_loop_without_an_end_is_ended_with_its_line(catches, timer):
    says = r"balance is still busy after 0.01 s, .*, line \d+: .*\n.*a loop whose end never"
    with pytest.raises(CheckFailed, match=says), time_limit("balance", 0.01):
        _for_ever(catches)
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 100.0


def test_what_ends_in_time_is_left_alone_and_so_is_the_timer_around_it(timer):
    with time_limit("balance"):
        sum(range(10))
    rest_s, again_s = signal.getitimer(signal.ITIMER_REAL)
    assert rest_s > 100.0
    assert again_s == 0.0


def test_beside_the_main_thread_there_is_no_limit(timer):
    seen = []

    def inside():
        with time_limit("balance", 0.01):
            seen.append(signal.getitimer(signal.ITIMER_REAL)[0])

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen[0] > 100.0
