"""A rank's own ledger: the rows so far, and the tables that they are numbers into."""

from __future__ import annotations

import time
from typing import Any

from hw_utils import ledger
from hw_utils.board import RETURNED, STATE, Publisher
from hw_utils.ops import OBJECT_OPS

COMPACT_ROWS = 1 << 16

# A row while the rank runs; `site` stands for the ledger's op, file and line.
ROW = (
    "site", "peer", "n_bytes", "start_s", "end_s", "tag", "group", "seq", "order", "waited",
    "wait_start_s", "wait_end_s", "root", "itemsize", "part_of",
)  # fmt: skip
PEER, START, END, TAG, SEQ, ORDER, WAITED, WAIT_START, WAIT_END, PART_OF = (
    ROW.index(c)
    for c in ("peer", "start_s", "end_s", "tag", "seq", "order", "waited", "wait_start_s", "wait_end_s", "part_of")
)


class Keeper:
    """This process's ledger and its part of the board."""

    def __init__(self, rank: int, world_size: int, publisher: Publisher) -> None:
        self.rank, self.world_size, self.publisher = rank, world_size, publisher
        self.q, self.d, self.header = publisher.q, publisher.d, publisher.header
        self.groups: dict[tuple[int, ...] | None, int] = {None: 0}
        self.object_sites: set[int] = set()
        self._sites: dict[tuple[str, str, int], int] = {}
        self.begin()

    def begin(self) -> None:
        """Forgets what connecting the ranks has written."""
        self.rows: list[list[Any]] = []
        self.parts: list[dict] = []
        self.order = 0
        self.seqs: dict[tuple, int] = {}
        self.outer: tuple[Any, int] = (None, -1)  # the object collective under way: its frame, its first row
        self.raw: list[tuple[Any, list[Any]]] = []  # works that only C++ waits for, and their rows

    def site(self, key: tuple[str, str, int]) -> int:
        """The number of an (operation, file, line)."""
        number = self._sites.get(key)
        if number is None:
            number = self._sites[key] = self.publisher.site(key)
            if key[0] in OBJECT_OPS:
                self.object_sites.add(number)
        return number

    def number(self, row: list[Any], outer: Any, key: tuple) -> None:
        """The row's place among the calls of its channel; a further part of an object collective joins the first."""
        if row[0] in self.object_sites:
            if self.outer[0] is outer:
                row[PART_OF], row[TAG] = self.outer[1], -1 - row[TAG]
                key = (*key, "part")
            else:
                self.outer = (outer, row[ORDER])
        elif self.outer[0] is not None:
            self.outer = (None, -1)
        n = self.seqs.get(key, 0)
        self.seqs[key] = n + 1
        row[SEQ] = n

    def compact(self) -> None:
        """Rows that will not change any more become arrays."""
        self.parts.append(self._columns([r for r in self.rows if r[WAITED] >= 0]))
        self.rows = [r for r in self.rows if r[WAITED] < 0]

    def _columns(self, rows: list[list[Any]]) -> dict:
        sites = [(i, i, line) for i, (_, _, line) in enumerate(self.publisher.site_list)]
        return ledger.columns_of([
            (op, *row[1:5], file, line, *row[5:]) for row in rows for op, file, line in (sites[row[0]],)
        ])  # fmt: skip

    def returned(self) -> None:
        """Publishes that the worker has ended: nobody need wait for this rank."""
        self.q[self.header + STATE] = RETURNED

    def finish(self) -> dict[str, Any]:
        """The ledger as `ledger.merge` takes it."""
        self._await_raw()
        self.parts.append(self._columns(self.rows))
        sites = self.publisher.site_list
        return {
            "columns": ledger.join(self.parts),
            "ops": [op for op, _, _ in sites],
            "files": [file for _, file, _ in sites],
            "groups": list(self.groups),
        }

    def _await_raw(self) -> None:
        """The ends of works that C++ waited for are noted by another thread, a moment later."""
        deadline = time.perf_counter() + 0.05
        while time.perf_counter() < deadline and any(w.is_completed() and r[END] == r[START] for w, r in self.raw):
            time.sleep(0.0005)
