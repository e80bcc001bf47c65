"""Whether a process that ran an answer in chosen orders has let other ranks in wherever the text gives a chance.

It says which points each call of each rank has passed. The grader has the text: a way through the code must begin at
its first instruction, go on only where one instruction can follow another, and end in a return. Steps that were not
seen, as when the tracer was taken away, leave a gap. It also says whose turn it was when; the grader goes through the
order itself, and the turn must have passed where the order passes it.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from types import CodeType
from typing import Any

from hw_utils.checks.lesson_06.communication_layer import generated_methods
from hw_utils.core.source.students_files import is_students
from hw_utils.threads.interleavings.switch_plan import Plan
from hw_utils.threads.interleavings.switch_points import about, codes_in, is_installed, module_of

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_GOES = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")
UNSEEN = "steps of your methods were not seen, so no other rank could be let in there"
ANOTHER_ORDER = "the ranks did not take turns in the orders that were asked for"


class Evidence:
    """What is wrong with the ways of all calls so far; `problem` is empty if nothing is."""

    def __init__(self) -> None:
        self.problem = ""
        self.codes: list[Way] = []
        self.are_whole: list[bool] = []
        self.n_steps: list[int] = []

    def look_at(self, said: dict[str, Any], orders: list, world_size: int, n_calls: int) -> None:
        """Takes in what was said about some orders."""
        try:
            self.codes += [Way(_of_the_text(code)) for code in said["codes"]]
            self.are_whole += [self._is_whole(way) for way in said["ways"]]
            self.n_steps += [len(way) for way in said["ways"]]
            for outcome, order in zip(said["outcomes"], orders):
                if outcome["results"] is not None:
                    self.problem = self.problem or self._problem_of(outcome, order, world_size, n_calls)
            n_good = sum(outcome["results"] is not None for outcome in said["outcomes"])
            if n_good < len(orders) and n_good + 1 != len(said["outcomes"]):
                self.problem = "not every order was run"
        except _NotInACell as error:
            self.problem = f"{error}: the text of this code is in no cell, so its steps cannot be checked"
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            self.problem = f"what the runs say of themselves has another form: {type(error).__name__}"

    def _problem_of(self, outcome: dict[str, Any], order: list, world_size: int, n_calls: int) -> str:
        if order[0] > outcome["n_points"] or not self._all_passed(outcome["passed"], world_size, n_calls):
            return UNSEEN
        return "" if _is_in_order(outcome, order, self._n_points(outcome)) else ANOTHER_ORDER

    def _n_points(self, outcome: dict[str, Any]) -> list[int]:
        """Of each rank, in its methods; torch's own work in place can have more."""
        return [sum(self.n_steps[way] for way in calls) for calls in outcome["passed"]]

    def _all_passed(self, passed: list, world_size: int, n_calls: int) -> bool:
        calls = [calls[:n_calls] for calls in passed]
        return [len(c) for c in calls] == [n_calls] * world_size and all(self.are_whole[n] for c in calls for n in c)

    def _is_whole(self, steps: list) -> bool:
        """Whether nothing is missing from the points that one call has passed."""
        frames: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for frame, code, offset in steps:
            frames[frame].append((code, offset))
        is_raised, are_whole = False, []
        if not any(self.codes[parts[0][0]].is_students for parts in frames.values()):
            return False
        for parts in frames.values():
            way = self.codes[parts[0][0]]
            if {code for code, _ in parts} != {parts[0][0]}:
                return False
            fits, took_handler, ended = way.fits([offset for _, offset in parts])
            is_raised |= took_handler
            if not fits:
                return False
            are_whole.append(ended)
        return bool(are_whole) and are_whole[0] and (is_raised or all(are_whole))


def _is_in_order(outcome: dict[str, Any], order: list, n_points: list[int]) -> bool:
    """Whether the turn passed as the order passes it, among ranks of which some were surely ready to take it.

    n_points: of each rank, at least. Ready is who has not begun, and who gave its turn away only as the order said so.
    """
    plan, everyone = Plan(*order), (1 << len(n_points)) - 1
    current, ready, passed = -1, everyone, [0] * len(n_points)
    for seen, rank, runnable in [*outcome["turns"], [outcome["n_points"], None, 0]]:
        is_due = False
        while plan.seen < seen and not is_due:
            is_due = plan.at_point()
            passed[current] += 1
        if plan.seen != seen or rank not in (current, None) or (is_due and rank is None):
            return False
        if rank is None:
            break
        if ready & ~runnable or runnable & ~everyone or not runnable or (is_due and not runnable >> rank & 1):
            return False
        ready |= is_due << max(rank, 0)
        current = plan.choose([r for r in range(len(n_points)) if runnable >> r & 1], rank)
        ready &= ~(1 << current)
    return all(here >= there for here, there in zip(passed, n_points))


class Way:
    """How the points of one code can follow each other."""

    def __init__(self, code: dict[str, Any]) -> None:
        listed = code["instructions"]
        names = {offset: name for offset, name, _ in listed}
        self.points = set(code["points"])
        self.is_generator = any("YIELD" in name or "GENERATOR" in name for name in names.values())
        # a long argument stands in an instruction of its own before; which of both is seen is Python's secret
        self.maybe = {b[0] for a, b in pairwise(listed) if a[1] == "EXTENDED_ARG"} & self.points
        self.after: dict[int, list[int]] = {}
        for (offset, name, target), following in zip(listed, [*listed[1:], [None]]):
            goes_on = name not in _ENDS and name not in _GOES
            self.after[offset] = [n for n in (following[0] if goes_on else None, target) if n not in (None, -1)]
        self.ends = {offset for offset, name in names.items() if name in _ENDS}
        self.handlers = code["handlers"]
        self.first = listed[0][0]
        self.is_students = not module_of(code["at"][0])

    def fits(self, offsets: list[int]) -> tuple[bool, bool, bool]:
        """(whether these points can follow each other, whether an exception was caught on the way, whether the
        frame has come to its end after the last)."""
        if not set(offsets) <= self.points:
            return False, False, False
        caught = False
        if not self.is_generator and offsets[0] not in self._next([self.first])[0]:
            return False, False, False
        for here, there in pairwise(offsets):
            if there not in self._next(self.after[here])[0]:
                if there not in self._next(self.after[here], here)[0]:
                    return False, False, False
                caught = True
        last = offsets[-1]  # a first instruction may be the last one, too: RETURN_CONST, since Python 3.12
        return True, caught, self.is_generator or last in self.ends or self._next(self.after[last])[1]

    def _next(self, starts: list[int], raises_at: int | None = None) -> tuple[set[int], bool]:
        """The points that can come first from there, and whether the end can; raises_at: also where an exception of
        that instruction, or of one on the way, leads."""
        found, ends, seen = set(), False, set()
        waiting = [*starts, *(self._handlers_of(raises_at) if raises_at is not None else ())]
        while waiting:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            if here in self.points:
                found.add(here)
                if here not in self.maybe:
                    continue
            ends |= here in self.ends
            waiting += self.after[here]
            if raises_at is not None:
                waiting += self._handlers_of(here)
        return found, ends

    def _handlers_of(self, offset: int) -> list[int]:
        return [target for start, end, target in self.handlers if start <= offset < end]


def _of_the_text(code: dict[str, Any]) -> dict[str, Any]:
    """The code as a cell's text has it, as Python makes it for a class of a cell, or as a library's file has it."""
    file, name, line = code["at"]
    cells = {one: "".join(linecache.cache[one][2]) for one in list(linecache.cache) if is_students(one)}
    if file in cells:
        known = [_codes_of(file, cells[file])]
    elif is_installed(file) and not is_students(file):
        known = [_codes_of_a_library(file)]
    else:
        known = [_made_for(text) for text in cells.values()]
    for codes in known:
        for one in codes.get((name, line), ()):
            if about(one) == {**code, "at": [one.co_filename, name, line]}:
                return code
    raise _NotInACell(name)


class _NotInACell(Exception):
    """Nobody can say which ways there are through such a code."""


@functools.lru_cache(maxsize=50)
def _codes_of_a_library(file: str) -> dict[tuple[str, int], list[CodeType]]:
    """(qualified name, first line) -> code, of everything in a library's file."""
    return _by_place(codes_in(file))


def _by_place(found: Iterable[CodeType]) -> dict[tuple[str, int], list[CodeType]]:
    codes = defaultdict(list)
    for code in found:
        codes[getattr(code, "co_qualname", code.co_name), code.co_firstlineno].append(code)
    return codes


@functools.lru_cache(maxsize=50)
def _made_for(text: str) -> dict[tuple[str, int], list[CodeType]]:
    """(qualified name, first line) -> methods that Python has made for the classes of a cell."""
    return _by_place(generated_methods.codes_of(_tree_of(text)))


@functools.lru_cache(maxsize=50)
def _codes_of(file: str, text: str) -> dict[tuple[str, int], list[CodeType]]:
    """(qualified name, first line) -> code, of everything that a cell defines, compiled as a whole and statement by
    statement as notebooks do: there Python does not know what a module is. Nothing is run."""
    tree = _tree_of(text)
    bodies = [tree.body, *([node] for node in tree.body)]
    found = [compile(ast.Module(body, []), file, "exec", dont_inherit=True) for body in bodies]
    for code in found:
        found += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return _by_place(found)


def _tree_of(text: str) -> ast.Module:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return ast.parse(shell.transform_cell(text) if shell else text)
