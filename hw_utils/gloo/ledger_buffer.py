"""A rank's own ledger: the rows so far, and the tables that they are numbers into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from types import FrameType
from typing import Any

import numpy as np

from hw_utils.core.calls.public_calls import OBJECT_OPS, PUBLIC_NAMES, caller
from hw_utils.core.source.students_files import is_students
from hw_utils.gloo import merged_trace
from hw_utils.gloo.reducer_work import CppWorks
from hw_utils.gloo.shared_state import RETURNED, WAIT, Publisher
from hw_utils.gloo.work import COLUMNS, WAIT_END, work_class

_FLOATS = {"start_s", "end_s", "wait_start_s", "wait_end_s"}


class Keeper:
    """This process's ledger and its part of the board."""

    def __init__(self, rank: int, world_size: int, publisher: Publisher) -> None:
        self.rank, self.world_size, self.publisher = rank, world_size, publisher
        self.q, self.d, self.header = publisher.q, publisher.d, publisher.header
        self.groups: dict[tuple[str, tuple[int, ...] | None], int] = {}  # name and global ranks, None: all of them
        self.n_worlds, self.n_destroyed = 0, 0  # worlds that were destroyed, and the groups that torch counted in them
        self.rows: list[Sequence[Any]] = []
        self.Work = work_class(self.q, self.d, self.header)
        self._sites: dict[tuple[str, str, int], int] = {}
        self.count_by_hand: Callable[[], int] = count(1).__next__  # groups that ranks make by hand, this one counted
        self.begin()

    def begin(self) -> None:
        """Forgets what connecting the ranks has written."""
        self.rows.clear()
        self.parts: list[dict] = []
        self.outer: Any = None  # the frame of the object collective under way
        self.n_outer = 0
        self.cpp_works = CppWorks()

    def site(self, key: tuple[str, str, int]) -> int:
        """The number of an (operation, file, line)."""
        number = self._sites.get(key)
        if number is None:
            number = self._sites[key] = self.publisher.site(key)
        return number

    def slow_site(
        self, top: FrameType | None, method: str, guess: FrameType | None, known: dict
    ) -> tuple[int, Any, int, int]:
        """(site, the frame of the student's call, its part, its kind) by a walk up the stack.

        The frame is None if C++ called, True if the call is no part of another one. If `guess` is that call's own line
        of the student's code, `known` learns it: by its instruction, and by its code and instruction.
        """
        if (
            top is not None and top.f_globals["__name__"] == "hw_utils.gloo.group"
        ):  # the first call on a group, which settles it
            top, guess = top.f_back, None
        if guess is not None and (id(guess.f_code), guess.f_lasti) in known:
            found = known[guess.f_lasti] = known[id(guess.f_code), guess.f_lasti]
            return found[1], True, 0, 0
        op, outer, file, line = caller(top, method)
        site = self.site((op, file, line))
        if outer is None:
            return site, None, 0, 0
        if op in OBJECT_OPS:
            return site, outer, *self._part(outer, method)
        if guess is not None and is_students(guess.f_code.co_filename):
            known[guess.f_lasti] = known[id(guess.f_code), guess.f_lasti] = guess.f_code, site
        return site, True, 0, 0

    def _part(self, outer: FrameType, method: str) -> tuple[int, int]:
        """An object collective is several calls: those of the same `outer` are one for the student.

        Each travels by the algorithm of its own `method`.
        """
        if outer is not self.outer:
            self.outer, self.n_outer = outer, self.n_outer + 1
        return self.n_outer, merged_trace.kind_of(PUBLIC_NAMES.get(method, method))

    def compact(self) -> None:
        """Rows that will not change any more become arrays."""
        done = [row for row in self.rows if row[WAIT_END] >= 0.0]
        left = [row for row in self.rows if row[WAIT_END] < 0.0]
        if done:
            self.parts.append(_columns(done))
        self.rows[:] = left  # in place: groups hold its append

    def returned(self) -> None:
        """Publishes that the worker has ended: nobody need wait for this rank."""
        self.q[self.header + WAIT] = RETURNED

    def finish(self) -> dict[str, Any]:
        """The ledger as `merged_trace.merge` takes it."""
        self.outer = None
        parts = [*self.parts, _columns(self.rows)]
        columns = {name: np.concatenate([p[name] for p in parts]) for name in COLUMNS}
        sites = self.publisher.site_list
        ops = [op for op, _, _ in sites]
        return {
            "columns": merged_trace.ordered(columns, ops),
            "ops": ops,
            "files": [file for _, file, _ in sites],
            "lines": [line for _, _, line in sites],
            "groups": list(self.groups),
        }


def _columns(rows: list[Sequence[Any]]) -> dict[str, np.ndarray]:
    values = zip(*rows) if rows else [()] * len(COLUMNS)
    columns = {name: np.array(column, "f8" if name in _FLOATS else "i8") for name, column in zip(COLUMNS, values)}
    end, waited = columns["end_s"], columns["wait_end_s"]
    columns["end_s"] = np.where((end == columns["start_s"]) & (waited >= 0), waited, end)  # gloo did not note it
    return columns
