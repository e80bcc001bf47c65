"""Due dates, what a day costs, and extensions: all in late.csv of the course folder.

    lesson,student,due,percent_a_day,most_percent
    *,,,10,50
    02_all_reduce,,2026-03-01 23:59 Europe/Berlin,,
    02_all_reduce,ada,2026-03-08 23:59 Europe/Berlin,,

A row with a student is that student's own due date. `*` stands for every lesson. Each started day after the due date
costs `percent_a_day` of the points that the student has, `most_percent` at most; what has no timestamp is not late.
Dates are as in course_time.py, and are said again in the zone in which they stand here.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from nbgrader.api import Gradebook

from hw_grader.term.course_time import EXAMPLE, read_date, shown, utc

FILE = "late.csv"
_DAY_S = 86_400


class LateError(ValueError):
    """late.csv cannot be used; says the line, the rule and what came."""


@dataclass(frozen=True)
class Rule:
    """One row of late.csv; None where it says nothing."""

    lesson: str
    student: str
    due: datetime | None
    percent_a_day: float | None
    most_percent: float | None


@dataclass(frozen=True)
class Terms:
    """What holds for one student in one lesson."""

    due: datetime | None = None
    percent_a_day: float = 0.0
    most_percent: float = 100.0

    def penalty(self, points: float, handed_in: datetime | None) -> float:
        """Points off; 0.0 without a due date or a time."""
        if self.due is None or handed_in is None or handed_in <= self.due:
            return 0.0
        days = math.ceil((handed_in - self.due).total_seconds() / _DAY_S)
        return points * min(days * self.percent_a_day, self.most_percent) / 100


def read_rules(root: Path) -> list[Rule]:
    """The rows of late.csv; none if there is no such file.

    Raises:
        LateError: a column, a date or a number that is none.
    """
    path = root / FILE
    if not path.exists():
        return []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        wanted = {"lesson", "student", "due", "percent_a_day", "most_percent"}
        if set(reader.fieldnames or ()) != wanted:
            raise LateError(f"{FILE} has the columns {', '.join(sorted(wanted))}; got {reader.fieldnames}")
        return [_rule(row, reader.line_num) for row in reader]


def _rule(row: dict[str, str], line: int) -> Rule:
    cells = {name: (text or "").strip() for name, text in row.items() if name}
    if not cells["lesson"]:
        raise LateError(f"{FILE}, line {line}: a row needs a lesson, or * for all of them")
    return Rule(cells["lesson"], cells["student"], _due(cells["due"], line),
                _percent(cells["percent_a_day"], line), _percent(cells["most_percent"], line))  # fmt: skip


def _due(text: str, line: int) -> datetime | None:
    if not text:
        return None
    try:
        return read_date(text)
    except ValueError as error:
        raise LateError(f"{FILE}, line {line}: due is a date as {EXAMPLE}, got {text!r}") from error


def _percent(text: str, line: int) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not 0 <= value <= 100:
        raise LateError(f"{FILE}, line {line}: a percentage is a number from 0 to 100, got {text!r}")
    return value


def terms(rules: list[Rule], lesson: str, student: str) -> Terms:
    """What holds: the student's row before everybody's, the lesson's before `*`."""
    fits = [r for r in rules if r.lesson in ("*", lesson) and r.student in ("", student)]
    fits.sort(key=lambda rule: (bool(rule.student), rule.lesson != "*"))
    said: dict[str, object] = {}
    for rule in fits:
        chosen = {"due": rule.due, "percent_a_day": rule.percent_a_day, "most_percent": rule.most_percent}
        said |= {name: value for name, value in chosen.items() if value is not None}
    return Terms(**said)


def apply_rules(root: Path) -> dict[str, dict[str, str]]:
    """Writes due dates, extensions and penalties into gradebook.db; lesson -> student -> how late, in words.

    The same file gives the same gradebook, however often. Without late.csv nothing is changed.
    """
    rules, found = read_rules(root), {}
    if not rules or not (root / "gradebook.db").exists():
        return {}
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
        for assignment in gradebook.assignments:
            everybody = terms(rules, assignment.name, "")
            assignment.duedate = everybody.due and utc(everybody.due).replace(tzinfo=None)  # as nbgrader's
            said = found.setdefault(assignment.name, {})
            for handed_in in gradebook.assignment_submissions(assignment.name):
                own = terms(rules, assignment.name, handed_in.student.id)
                more = utc(own.due) - utc(everybody.due) if own.due and everybody.due else timedelta()
                handed_in.extension = more or None
                when = handed_in.timestamp and handed_in.timestamp.replace(tzinfo=timezone.utc)
                for notebook in handed_in.notebooks:
                    notebook.late_submission_penalty = own.penalty(notebook.score or 0.0, when)
                off = sum(notebook.late_submission_penalty for notebook in handed_in.notebooks)
                if words := _words(own, when, off, bool(more)):
                    said[handed_in.student.id] = words
        gradebook.db.commit()
    return found


def _words(own: Terms, when: datetime | None, off: float, extended: bool) -> str:
    extension = f"extended to {shown(own.due)}" if extended and own.due else ""
    if own.due is None or when is None or when <= own.due:
        return extension
    days = math.ceil((when - own.due).total_seconds() / _DAY_S)
    late = f"late by {days} day{'s' if days > 1 else ''}, {off:g} points off"
    return ", ".join(text for text in (late, extension) if text)
