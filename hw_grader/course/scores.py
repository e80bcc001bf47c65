"""Marks as CSV, for whatever reads it; an LMS's own columns are in term/lms_csv.py, Gradescope's in gradescope.py.

What could not be graded is left empty, never 0.

Points are the gradebook's where it has them (with those given by hand, less late penalties), else the records'.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hw_grader.course import grading_records
from hw_grader.course.grading_records import Record

NOT_GRADED = ""


@dataclass(frozen=True)
class Score:
    """One student's mark for one assignment; `points` is None if it could not be graded."""

    student: str
    assignment: str
    points: float | None
    max_points: float
    late_penalty: float = 0.0
    first_name: str = ""
    last_name: str = ""
    record: Record | None = None


def scores(root: Path, assignment: str) -> list[Score]:
    """Everybody's marks for one assignment, by student."""
    found = {r.student: Score(r.student, assignment, _points(r), r.max_points, record=r) for r in
             grading_records.all_of(root, assignment)}  # fmt: skip
    for score in _from_gradebook(root, assignment):
        record = found[score.student].record if score.student in found else None
        points = score.points if record is None or record.is_graded else None
        found[score.student] = Score(**{**vars(score), "record": record, "points": points})
    return [found[student] for student in sorted(found)]


def _points(record: Record) -> float | None:
    return record.points if record.is_graded else None


def _from_gradebook(root: Path, assignment: str) -> list[Score]:
    path = root / "gradebook.db"
    if not path.exists():
        return []
    from nbgrader.api import Gradebook, MissingEntry

    with Gradebook(f"sqlite:///{path}") as gradebook:
        try:
            submissions = gradebook.assignment_submissions(assignment)
        except MissingEntry:
            return []
        return [
            Score(s.student.id, assignment, max(0.0, s.score - (s.late_submission_penalty or 0)), s.max_score,
                  s.late_submission_penalty or 0.0, s.student.first_name or "", s.student.last_name or "")
            for s in submissions
        ]  # fmt: skip


def as_csv(found: list[Score]) -> str:
    """One row a student: points, state, reason, and points and state of every check."""
    ids = list(dict.fromkeys(v.grade_id for s in found if s.record for v in s.record.verdicts))
    head = ["student", "assignment", "points", "max_points", "late_penalty", "state", "reason", "notes"]
    rows = [[*head, *(f"{i} {what}" for i in ids for what in ("points", "state"))]]
    for score in found:
        rows.append([*_front(score), *_checks(score, ids)])
    return csv_text(rows)


def _front(score: Score) -> list[Any]:
    record = score.record
    state, reason, notes = (record.state, record.shown, "; ".join(record.for_staff)) if record else ("not run", "", "")
    return [score.student, score.assignment, number(score.points), number(score.max_points),
            number(score.late_penalty), state, reason, notes]  # fmt: skip


def _checks(score: Score, ids: list[str]) -> list[str]:
    verdicts = {v.grade_id: v for v in score.record.verdicts} if score.record else {}
    cells = []
    for grade_id in ids:
        verdict = verdicts.get(grade_id)
        known = verdict is not None and verdict.state != "grader-fault" and score.points is not None
        cells += [number(verdict.points) if known else NOT_GRADED, verdict.state if verdict else ""]
    return cells


def number(value: float | None) -> str:
    return NOT_GRADED if value is None else f"{value:g}"


def csv_text(rows: list[list[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([[_cell(v) for v in row] for row in rows])
    return out.getvalue()


def _cell(value: Any) -> Any:
    """With one way to end a line: a lone \\r is not quoted, and some would take it for a row's end."""
    return safe(re.sub("\r\n?", "\n", value)) if isinstance(value, str) else value


# Where a cell begins, or would if the file were split at other characters than commas; then what does not keep a
# spreadsheet from it; then what begins a formula, in some spreadsheets wide signs, too.
_BEGINS, _BEFORE, _FORMULA = r"(^|[;\t\r\n])", r"""((?:[^\S\t\r\n]|['"])*)""", r"(?=[=+\-@\uff1d\uff0b\uff0d\uff20])"


def safe(text: str) -> str:
    """With an apostrophe before what a spreadsheet would run as a formula, wherever it splits the file."""
    return re.sub(_BEGINS + _BEFORE + _FORMULA, r"\1\2'", text)


def unsafe(text: str) -> str:
    """What `safe` was given."""
    return re.sub(f"{_BEGINS}{_BEFORE}'{_FORMULA}", r"\1\2", text)
