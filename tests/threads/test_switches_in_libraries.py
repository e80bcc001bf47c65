"""Libraries' Python functions are many steps, too, when a student's code calls them; the grader knows their text."""

from __future__ import annotations

import concurrent.futures.process
import contextlib
import copy
import functools
import graphlib
import inspect
import linecache
import optparse
import os
import queue
import threading
from collections import Counter, UserDict, defaultdict

import pytest
import torch
import torch.package._digraph

from hw_utils.checks.lesson_06.communication_layer.explored_orders import tensor_of
from hw_utils.checks.lesson_06.communication_layer.points_passed import UNSEEN, Evidence
from hw_utils.threads.interleavings.calls_in_orders import CallsInOrders
from hw_utils.threads.interleavings.explorer import explore
from hw_utils.threads.interleavings.switch_points import codes_in, is_of_a_library, is_passed_through, points_in


class Slots:
    def __init__(self, kind):
        self.kept, self.lock = kind(), threading.Lock()

    def of_values(self):
        return self.kept.ensure_value("slots", [])

    def of_a_dictionary(self):
        return self.kept.setdefault("slots", [])

    def by_torch(self):
        return torch.no_grad()(self.kept.ensure_value)("slots", [])

    def of_a_graph(self):
        self.kept.add_node("slots")
        return self.kept._succ.setdefault("slots", {})

    def by_a_stack(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self.kept.ensure_value, "slots", [])
        return self.kept.slots

    def by_a_part(self):
        return functools.partial(self.kept.ensure_value, "slots")([])

    def safely(self):
        with self.lock:
            return self.kept.ensure_value("slots", [])


def are_the_same(kind, how):
    """Whether two ranks have got one list, in each outcome."""
    found = explore(
        lambda: Slots(kind), lambda slots, rank, note: getattr(slots, how)(), 2, n_interleavings=200, key=_is_one
    )
    return {_is_one(outcome.results) for outcome in found.outcomes}


def _is_one(results):
    return results[0] is results[1]


@pytest.mark.parametrize("how", ["of_values", "by_torch", "by_a_stack", "by_a_part"])
def test_what_a_librarys_function_looks_for_and_makes_is_made_twice(how):
    assert are_the_same(optparse.Values, how) == {True, False}


def test_so_it_is_in_a_container_that_is_written_in_python():
    assert are_the_same(UserDict, "of_a_dictionary") == {True, False}


def test_so_it_is_in_those_modules_of_torch_that_keep_things():
    assert are_the_same(torch.package._digraph.DiGraph, "of_a_graph") == {True, False}
    tensor_method, module_method = (
        next(iter(codes_in(inspect.getsourcefile(module)))) for module in (torch._tensor, torch.nn.modules.module)
    )
    assert is_passed_through(tensor_method)
    assert not is_passed_through(module_method)


def test_under_a_lock_it_is_made_once():
    assert are_the_same(optparse.Values, "safely") == {True}


class Factory:
    """What C code calls to make a value, with no code of a student's in between."""

    def __init__(self, make):
        self.made = defaultdict(make)
        self.remembered = functools.cache(make)

    def by_a_dictionary(self):
        return self.made["group"]

    def by_a_cache(self):
        return self.remembered()


def made_by(make, how):
    found = explore(
        lambda: Factory(make), lambda factory, rank, note: getattr(factory, how)(), 2, n_interleavings=60, key=_is_one
    )
    return {_is_one(outcome.results) for outcome in found.outcomes}


@pytest.mark.parametrize("how", ["by_a_dictionary", "by_a_cache"])
@pytest.mark.parametrize(
    "make",
    [functools.partial(threading.Barrier, 2), threading.Condition, queue.Queue, functools.partial(copy.deepcopy, [[]])],
    ids=["barrier", "condition", "queue", "copy"],
)
def test_c_code_that_looks_and_then_puts_may_be_interrupted_in_a_librarys_function_that_it_calls(make, how):
    assert made_by(make, how) == {True, False}


@pytest.mark.parametrize("make", [dict, threading.Lock, queue.SimpleQueue], ids=["dict", "lock", "simple queue"])
def test_it_is_one_step_where_all_of_it_is_c(make):
    assert made_by(make, "by_a_dictionary") == {True}


def test_code_is_a_librarys_only_if_it_stands_in_the_file_whatever_linecache_says():
    file, text = (
        concurrent.futures.process.__file__,
        "def get_or_make(made):\n    return made.setdefault('slots', [])\n",
    )
    names, before = {}, linecache.cache.get(file)
    exec(compile(text, file, "exec"), names)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    codes_in.cache_clear()
    try:
        assert not is_of_a_library(names["get_or_make"].__code__)
        assert points_in(names["get_or_make"].__code__)
        assert is_of_a_library(concurrent.futures.process.ProcessPoolExecutor.submit.__code__)
    finally:
        linecache.cache.pop(file)
        linecache.cache.update({file: before} if before else {})


def test_what_is_made_for_threads_has_no_switches_and_what_it_calls_has():
    alone = [threading.Barrier.wait, contextlib.ExitStack.callback, functools.wraps, torch.einsum]
    assert all(not points_in(f.__code__) and is_passed_through(f.__code__) for f in alone)
    switched = [optparse.Values.ensure_value, graphlib.TopologicalSorter.add, torch.nn.ParameterDict.setdefault]
    assert all(points_in(f.__code__) and is_of_a_library(f.__code__) for f in switched)
    assert not points_in(CallsInOrders.run.__code__)
    assert points_in(are_the_same.__code__)
    assert points_in(os._Environ.__getitem__.__code__)  # frozen


LAYER = """class Layer:
    def __init__(self, world_size):
        self.lock, self.slots = threading.Lock(), optparse.Values()
        self.barrier, self.counts = threading.Barrier(world_size), [Counter() for _ in range(world_size)]
        self.world_size = world_size

    def all_gather(self, tensor, rank, group_id):
        call = f"{group_id} {self.counts[rank][group_id]}"
        self.counts[rank].update([group_id])
        with self.lock:
            slots = self.slots.ensure_value(call, [None] * self.world_size)
        slots[rank] = tensor.clone()
        self.barrier.wait()
        return [slot.clone() for slot in slots]
"""


@pytest.fixture
def said(tmp_path):
    """What is said of a layer that calls libraries, in which its text stands in a cell; and of which orders."""
    cell = tmp_path / "cell.py"
    cell.write_text(LAYER)
    names = {"threading": threading, "optparse": optparse, "Counter": Counter}
    exec(compile("".join(linecache.getlines(str(cell))), str(cell), "exec"), names)
    orders = [(-1, 0, None), *((at, 0, None) for at in range(1, 40)), *((-1, 0, seed) for seed in range(20))]
    brought = [[tensor_of(rank, call) for call in range(2)] for rank in range(2)]
    with CallsInOrders(names["Layer"], 2, "all_gather", brought, [("group",)] * 2, 4.0) as calls:
        yield calls.run(orders), orders
    linecache.cache.pop(str(cell))


def problem_of(said, orders):
    evidence = Evidence()
    evidence.look_at(said, orders, 2, 2)
    return evidence.problem


def test_the_grader_knows_the_text_of_a_library(said):
    runs, orders = said
    assert {os.path.basename(code["at"][0]) for code in runs["codes"]} >= {"cell.py", "optparse.py"}
    assert not problem_of(runs, orders)


def test_a_step_in_a_library_that_was_not_seen_is_missed(said):
    runs, orders = said
    (library,) = [n for n, code in enumerate(runs["codes"]) if code["at"][1].endswith("ensure_value")]
    for way in runs["ways"]:
        first = next((step for step in way if step[1] == library), None)
        if first:
            way.remove(first)
    assert problem_of(runs, orders) == UNSEEN


def test_a_way_through_libraries_alone_is_no_call(said):
    runs, orders = said
    (library,) = [n for n, code in enumerate(runs["codes"]) if code["at"][1].endswith("ensure_value")]
    for way in runs["ways"]:
        way[:] = [step for step in way if step[1] == library]
    assert problem_of(runs, orders) == UNSEEN
