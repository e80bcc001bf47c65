"""What was imported since a moment, told without a look at what was there before."""

from __future__ import annotations

import sys
import time
import types

import pytest

from hw_utils import simulate
from hw_utils.virtual.ranks.own.imports import Imports


@pytest.fixture
def bring(monkeypatch):
    """Puts modules of these names where imported ones are; gives the last."""

    def bring(*names: str) -> types.ModuleType:
        for name in names:
            sys.modules.pop(name, None)
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        return sys.modules[names[-1]]

    return bring


def test_what_came_since_is_new_in_the_order_in_which_it_came(bring):
    imports = Imports()
    assert imports.new() == []
    bring("one_more", "another")
    assert imports.new() == ["one_more", "another"]
    imports.mark()
    bring("a_third")
    assert imports.new() == ["a_third"]


def test_a_module_that_was_imported_again_is_new_too(bring):
    bring("first", "last")
    imports = Imports()
    bring("last")
    assert imports.new() == ["last"]
    bring("first", "another")
    assert imports.new() == ["last", "first", "another"]


def test_a_module_that_was_removed_hides_none_that_came(bring):
    bring("first", "last")
    imports = Imports()
    del sys.modules["last"]
    bring("another")
    assert imports.new() == ["another"]


def test_at_first_all_can_be_new():
    assert Imports(all_are_new=True).new() == list(sys.modules)


def _seconds(rank, world_size, name):
    begin_s = sys.modules[name].perf_counter()
    time.sleep(3)
    return sys.modules[name].perf_counter() - begin_s


def test_a_module_of_the_program_may_take_a_clock_between_two_runs(bring):
    program = bring("a_program")
    program.perf_counter = lambda: 0.0
    assert simulate(_seconds, 2, ("a_program",), compute="free", isolate=False).results == [0.0, 0.0]
    program.perf_counter = time.perf_counter
    assert simulate(_seconds, 2, ("a_program",), compute="free", isolate=False).results == [3.0, 3.0]
    assert program.perf_counter is time.perf_counter
