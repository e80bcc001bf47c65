"""`expected_failures.txt`: which tests do not pass, where, and why; every line is checked both ways.

    # engine    world sizes   test                reason
    raw         2,4,8         test_ddp_get_bucket_sizes   counts the devices of a GPU
    simulate    4,8           test_get_rank       ...

"raw" is bare gloo: such a test is not valid, whatever the engines make of it. `*` stands for every world size. A line
whose test passes is as wrong as a failure that no line names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FILE = os.path.join(os.path.dirname(__file__), "expected_failures.txt")
ENGINES = ("raw", "launch", "simulate")


@dataclass(frozen=True)
class Expected:
    """One line: a test that fails, where and why."""

    engine: str
    worlds: tuple[int, ...] | None  # None: all
    test: str
    reason: str

    def covers(self, engine: str, world_size: int, test: str) -> bool:
        is_there = self.worlds is None or world_size in self.worlds
        return engine == self.engine and is_there and test == self.test


def read(path: str = FILE) -> list[Expected]:
    """The file's lines.

    Raises:
        ValueError: a line without an engine, world sizes, a test or a reason, or one that is there twice.
    """
    found: list[Expected] = []
    with open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith("#"):
                continue
            if len(line.split()) < 4 or line.split()[0] not in ENGINES:
                raise ValueError(f"line {number} must be engine, world sizes, test and reason, got {line.strip()!r}")
            found.append(_entry(line))
    return found


def without_stale(text: str, outcomes: Mapping[tuple[str, int, str], str]) -> str:
    """The list without the lines whose tests have passed wherever they ran; a line of some other place stays."""
    kept = []
    for line in text.splitlines(keepends=True):
        entry = _entry(line) if line.strip() and not line.startswith("#") else None
        reasons = [r for case, r in outcomes.items() if entry is not None and entry.covers(*case)]
        if not reasons or any(reasons):
            kept.append(line)
    return "".join(kept)


def _entry(line: str) -> Expected:
    engine, worlds, test, reason = line.split(None, 3)
    return Expected(engine, None if worlds == "*" else tuple(map(int, worlds.split(","))), test, reason.strip())


def surprises(outcomes: Mapping[tuple[str, int, str], str], expected: Iterable[Expected]) -> list[str]:
    """One sentence for each test that failed without a line, and for each line whose test passed.

    outcomes: (engine, world size, test) -> "" if it passed, else why not. Tests that no engine ran are left out.
    """
    expected, found = list(expected), []
    for (engine, world, test), reason in outcomes.items():
        lines = [e for e in expected if e.covers(engine, world, test)]
        if reason and not lines:
            found.append(f"{test} fails under {engine} with {world} ranks, and no line of the list names it: {reason}")
        elif lines and not reason:
            found.append(f"{test} passes under {engine} with {world} ranks: its line is stale ({lines[0].reason})")
    return found
