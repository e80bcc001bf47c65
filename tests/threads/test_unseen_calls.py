"""While orders are tried, no rank does anything where its tracer does not see it; what libraries do for it stays."""

from __future__ import annotations

import gc
import inspect
import logging
import subprocess
import sys
import threading
import warnings
from collections import namedtuple
from functools import partial

import pytest

from hw_utils.threads.interleavings.explorer import explore

TAKEN_AWAY = {
    "tracer": "list(map(sys.settrace, [None]))",
    "tracer of all threads": "threading.settrace(print), threading.Thread(target=print).start()",
    "profiler": "sys.setprofile(print)",
    "thread": "_thread.start_new_thread(print, ())",
    "thread by its old name": "_thread.start_new(print, ())",
    "timer": "threading.Timer(0, print).start()",
    "frame": "sys._getframe()",
    "lent frame": "inspect.currentframe()",
    "frame of logging": "logging.currentframe()",
    "referents": "gc.get_referents([])",
    "memory": "ctypes.string_at(id(sys), 1)",
}


def raised_by(text: str) -> str:
    """What a rank raises that runs this line of a cell's."""
    space: dict = {}
    cell = f"import _thread, ctypes, gc, inspect, logging, sys, threading\ndef work(shared, rank, note):\n    {text}"
    exec(compile(cell, "<ipython-input-1-unseen>", "exec"), space)
    (outcome,) = explore(dict, lambda shared, rank, note: space["work"](shared, rank, note), 1).outcomes
    return outcome.text


@pytest.mark.parametrize("text", TAKEN_AWAY.values(), ids=TAKEN_AWAY)
def test_what_no_tracer_sees_is_refused_before_it_is_done(text, monkeypatch):
    monkeypatch.setattr(threading, "_trace_hook", None)  # what a rank sets there would stay
    assert raised_by(text).startswith("PermissionError: ")


def test_a_hook_is_not_added():
    heard: list[str] = []
    space = {"heard": heard}
    cell = "import sys\ndef work(shared, rank, note):\n    sys.addaudithook(lambda event, args: heard.append(event))"
    exec(compile(cell, "<ipython-input-2-unseen>", "exec"), space)
    explore(dict, lambda shared, rank, note: space["work"](shared, rank, note), 2)
    sys.audit("somebody.listens")
    assert heard == []


def test_who_asks_by_an_event_of_that_name_is_not_run():
    odd = "type('Odd', (), {'f_code': property(lambda self: 1 / 0)})()"
    assert "PermissionError" in raised_by(f"sys.audit('sys._getframe', {odd})")


def _logs(shared: dict, rank: int, note: object) -> None:
    logging.getLogger("unseen").info("%s", rank)
    warnings.warn("seen", UserWarning, stacklevel=1)
    shared[rank] = namedtuple("Pair", "a b")(rank, partial(int, rank)())


def test_what_libraries_do_for_a_rank_is_not_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (outcome,) = explore(dict, _logs, 2, n_interleavings=20, key=len).outcomes
    assert outcome.results == [None, None]


def test_outside_ranks_all_of_it_can_be_done():
    raised_by("pass")
    before = sys.gettrace()
    sys.settrace(before)
    thread = threading.Thread(target=gc.get_objects)
    thread.start()
    thread.join()
    assert inspect.currentframe() is sys._getframe()


EVERYWHERE = """
import sys, threading, _thread
from hw_utils.core.source.unseen_calls import refuse_unseen
from hw_utils.threads import turns
from hw_utils.threads.interleavings.explorer import explore
refuse_unseen([turns.__file__], everywhere=True)
heard = []
sys.addaudithook(lambda *event: heard.append(event))
by_name = lambda: _thread.start_new_thread(print, ())
for do in (threading.Thread(target=print).start, by_name, lambda: sys.setprofile(print)):
    try:
        do()
    except PermissionError:
        heard.append("refused")
sys.audit("somebody.listens")
print(heard)
"""


def test_where_it_is_refused_everywhere_no_library_does_it_for_a_student_either():
    said = subprocess.run([sys.executable, "-c", EVERYWHERE], capture_output=True, text=True, check=True)
    assert said.stdout == "['refused', 'refused', 'refused']\n"
