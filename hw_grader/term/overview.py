"""The class over all lessons: who is where, what was hardest, which causes came most often, whom to help."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

N_CAUSES, N_HARDEST, N_BARS, N_NAMES = 10, 10, 10, 3
UNWRITTEN = " is not written yet."  # what a check says of a stub
STILL = 0.4  # a student stands still below this share of the points in each of the last two lessons


@dataclass(frozen=True)
class Bar:
    """One bar of a chart: what it is, how long (0 to 1), and the number beside it."""

    name: str
    share: float
    said: str


@dataclass(frozen=True)
class Cause:
    """A reason that students share: how many, in which lesson and check, and who."""

    text: str
    where: str
    students: tuple[str, ...]

    @property
    def shown(self) -> str:
        more = len(self.students) - N_NAMES
        return ", ".join(self.students[:N_NAMES]) + (f" and {more} more" if more > 0 else "")


def distribution(result) -> list[Bar]:
    """Ten bars of one lesson: how many of those graded have which share of its points; full marks are in the last."""
    shares = [row.points / row.max_points for row in result.rows if row.is_graded and row.max_points]
    counts = Counter(int(min(max(share * N_BARS, 0), N_BARS - 1)) for share in shares if math.isfinite(share))
    most = max(counts.values(), default=1)
    return [Bar(f"{10 * n} to {10 * n + 10} %", counts[n] / most, str(counts[n])) for n in range(N_BARS)]


def by_exercise(result) -> list[Bar]:
    """Every check of one lesson: the mean share of its points, over those graded."""
    points, most = defaultdict(float), defaultdict(float)
    for row in result.rows:
        for mark in row.marks if row.is_graded else ():
            if not mark.by_hand:
                points[mark.name] += mark.points
                most[mark.name] += mark.max_points
    return [Bar(name, points[name] / most[name], f"{100 * points[name] / most[name]:.0f} %") for name in most if
            most[name]]  # fmt: skip


def hardest(results: Sequence) -> list[Bar]:
    """The checks of all lessons with the smallest share of points."""
    bars = [Bar(f"{r.assignment}: {bar.name}", bar.share, bar.said) for r in results for bar in by_exercise(r)]
    return sorted((bar for bar in bars if bar.share < 1), key=lambda bar: bar.share)[:N_HARDEST]


def causes(results: Sequence) -> list[Cause]:
    """The commonest reasons for lost points, each student once a reason; numbers in them do not tell them apart.

    What is not written yet is one reason a lesson, whatever it is: nothing of it has been misunderstood.
    """
    who: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for result in results:
        for row in result.rows:
            for mark in row.marks if row.is_graded else ():
                if mark.lost and mark.reason:
                    said, where = mark.cause or mark.reason, f"{result.assignment}: {mark.name}"
                    if UNWRITTEN in mark.reason:
                        said, where = "something is not written yet", result.assignment
                    key = re.sub(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", "#", said)
                    who[where, key].setdefault(row.student, said)
    common = sorted(who.items(), key=lambda item: -len(item[1]))[:N_CAUSES]
    return [Cause(next(iter(said.values())), where, tuple(said)) for (where, _), said in common]


def missing(results: Sequence) -> dict[str, list[str]]:
    """Lesson -> who has not handed it in."""
    return {result.assignment: [row.student for row in result.rows if not row.is_handed_in] for result in results}


def standing_still(results: Sequence) -> dict[str, str]:
    """Student -> why: below STILL of the points, or nothing handed in, in each of the last two lessons."""
    if len(results) < 2:
        return {}
    last = [{row.student: row for row in result.rows} for result in results[-2:]]
    found = {}
    for student in last[-1]:
        rows = [rows.get(student) for rows in last]
        said = [_weak(row) for row in rows]
        if all(said):
            found[student] = ", then ".join(said)
    return found


def _weak(row) -> str:
    """Why this row worries; empty if it does not, or if nothing is known of it."""
    if row is None or not row.is_handed_in:
        return "nothing handed in"
    if not row.is_graded or not row.max_points or row.points / row.max_points >= STILL:
        return ""
    return f"{100 * row.points / row.max_points:.0f} % of the points"


def table(results: Sequence) -> list[dict]:
    """A row a student: the share of each lesson's points (None without a mark), and of all that is graded."""
    rows = [{row.student: row for row in result.rows} for result in results]
    students = sorted({student for lesson in rows for student in lesson})
    found = []
    for student in students:
        cells = [lesson.get(student) for lesson in rows]
        graded = [row for row in cells if row is not None and row.is_graded]
        most = sum(row.max_points for row in graded)
        points = sum(row.points for row in graded)
        found.append({"student": student, "cells": cells, "points": points,
                      "share": points / most if most else None})  # fmt: skip
    return found
