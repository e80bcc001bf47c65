"""A rank's own ledger: the rows so far, and the tables that they are numbers into."""

from __future__ import annotations

import time
from types import FrameType
from typing import Any

import numpy as np

from hw_utils import ledger
from hw_utils.board import RETURNED, STATE, Publisher
from hw_utils.ops import OBJECT_OPS, PUBLIC_NAMES, caller
from hw_utils.where import is_students
from hw_utils.work import COLUMNS, END, KIND, PART, START, WAIT_END, work_class

_FLOATS = {"start_s", "end_s", "wait_start_s", "wait_end_s"}


class Keeper:
    """This process's ledger and its part of the board."""

    def __init__(self, rank: int, world_size: int, publisher: Publisher) -> None:
        self.rank, self.world_size, self.publisher = rank, world_size, publisher
        self.q, self.d, self.header = publisher.q, publisher.d, publisher.header
        self.groups: dict[tuple[str, tuple[int, ...] | None], int] = {}  # name and global ranks, None: all of them
        self.rows: list[list[Any]] = []
        self.Work = work_class(self.q, self.d, self.header)
        self._sites: dict[tuple[str, str, int], int] = {}
        self._codes: list[Any] = []  # keeps code objects alive whose ids are keys
        self.begin()

    def begin(self) -> None:
        """Forgets what connecting the ranks has written."""
        self.rows.clear()
        self.parts: list[dict] = []
        self.outer: Any = None  # the frame of the object collective under way
        self.n_outer = 0
        self.raw: list[tuple[Any, list[Any]]] = []  # works that only C++ waits for, and their rows

    def site(self, key: tuple[str, str, int]) -> int:
        """The number of an (operation, file, line)."""
        number = self._sites.get(key)
        if number is None:
            number = self._sites[key] = self.publisher.site(key)
        return number

    def slow_site(self, top: FrameType, method: str, guess: FrameType | None, known: dict) -> tuple[int, Any]:
        """(site, the frame of the student's call) by a walk up the stack; None as the frame if C++ called.

        If `guess` is that call's own line of the student's code, `known` learns it.
        """
        if top.f_globals["__name__"] == "hw_utils.group":  # the first call on a group, which settles it
            top, guess = top.f_back, None
        op, outer, file, line = caller(top, method)
        site = self.site((op, file, line))
        if outer is None:
            return site, None
        if op in OBJECT_OPS:
            return site, outer
        if guess is not None and is_students(guess.f_code.co_filename):
            self._codes.append(guess.f_code)
            known[id(guess.f_code), guess.f_lasti] = site
        return site, True

    def note_part(self, row: list[Any], outer: FrameType, method: str) -> None:
        """An object collective is several calls: those of the same `outer` are one for the student.

        Each travels by the algorithm of its own `method`.
        """
        if outer is not self.outer:
            self.outer, self.n_outer = outer, self.n_outer + 1
        row[PART] = self.n_outer
        row[KIND] = ledger.kind_of(PUBLIC_NAMES.get(method, method))

    def compact(self) -> None:
        """Rows that will not change any more become arrays."""
        done = [row for row in self.rows if row[WAIT_END] >= 0.0]
        left = [row for row in self.rows if row[WAIT_END] < 0.0]
        if done:
            self.parts.append(_columns(done))
        self.rows[:] = left  # in place: groups hold its append

    def returned(self) -> None:
        """Publishes that the worker has ended: nobody need wait for this rank."""
        self.q[self.header + STATE] = RETURNED

    def finish(self) -> dict[str, Any]:
        """The ledger as `ledger.merge` takes it."""
        self.outer = None
        self._await_raw()
        parts = [*self.parts, _columns(self.rows)]
        columns = {name: np.concatenate([p[name] for p in parts]) for name in COLUMNS}
        sites = self.publisher.site_list
        return {
            "columns": ledger.ordered(columns),
            "ops": [op for op, _, _ in sites],
            "files": [file for _, file, _ in sites],
            "lines": [line for _, _, line in sites],
            "groups": list(self.groups),
        }

    def _await_raw(self) -> None:
        """The ends of works that C++ waited for are noted by another thread, a moment later."""
        deadline = time.perf_counter() + 0.05
        while time.perf_counter() < deadline and any(w.is_completed() and r[END] == r[START] for w, r in self.raw):
            time.sleep(0.0005)


def _columns(rows: list[list[Any]]) -> dict[str, np.ndarray]:
    values = zip(*rows) if rows else [()] * len(COLUMNS)
    columns = {name: np.array(column, "f8" if name in _FLOATS else "i8") for name, column in zip(COLUMNS, values)}
    end, waited = columns["end_s"], columns["wait_end_s"]
    columns["end_s"] = np.where((end == columns["start_s"]) & (waited >= 0), waited, end)  # gloo did not note it
    return columns
