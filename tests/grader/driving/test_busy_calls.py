"""An answer that computes and never comes back is ended; one that waits for the driver is not."""

from __future__ import annotations

import threading
import time
import traceback

import pytest

from hw_grader.driving import busy_calls
from hw_utils.virtual.ranks.clock import TAKEN, clock_of


def loops(busy: busy_calls.BusyCalls, seen: list[str]) -> None:
    n = 0
    try:
        with busy.computing():
            while n >= 0:
                n += 1
    except TimeoutError as error:
        seen += [type(error).__name__, str(error), traceback.format_exc()]


@pytest.fixture
def busy(monkeypatch):
    monkeypatch.setattr(busy_calls, "LIMIT_S", 0.2)
    monkeypatch.setattr(busy_calls, "_LOOK_S", 0.01)
    return busy_calls.BusyCalls()


def test_a_loop_without_an_end_is_ended_at_its_line(busy):
    seen: list[str] = []
    thread = threading.Thread(target=loops, args=(busy, seen), daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert seen[0] == "TimeoutError"
    assert "still busy after 0.2 s" in seen[1]
    assert "while n >= 0" in seen[2] or "n += 1" in seen[2]


def test_who_asks_the_driver_has_all_of_its_time_again(busy):
    with busy.computing():
        at_first = dict(busy._since_s)
        with busy.asking():
            assert busy._since_s == {}
        (since_s,) = busy._since_s.values()
        assert since_s > next(iter(at_first.values()))
    assert busy._since_s == {}


def test_asking_outside_of_a_call_begins_none(busy):
    with busy.asking():
        pass
    assert busy._since_s == {}


def test_its_clock_is_the_machines_where_the_answers_is_another_one():
    """Else each call would ask the driver for it, and compare what it says with this machine's."""
    busy = busy_calls.BusyCalls()
    with clock_of(threading, dict.fromkeys(TAKEN, None)), busy.computing(), busy.asking():
        assert time.thread_time is time.sleep is None
