"""Two assistants, two copies of the course: brings points and comments that were given by hand into one gradebook.

The other gradebook is a file that somebody sent: it is read row by row, and no point of it is taken unseen that is more
than its cell has, or that would stand in the place of a check's.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nbgrader.api import Gradebook, MissingEntry, SubmittedNotebook

from hw_grader.notebook.submission import one_line

_READ_S = 60.0  # a gradebook of a thousand students takes less than one
_STEPS = 10_000  # of SQLite's machine, between two looks at the clock
_TABLES = ("assignment", "submitted_assignment", "notebook", "submitted_notebook", "base_cell", "grade", "comment")
_OF_NOTEBOOK = """
    JOIN notebook ON notebook.id = submitted_notebook.notebook_id
    JOIN submitted_assignment ON submitted_assignment.id = submitted_notebook.assignment_id
    JOIN assignment ON assignment.id = submitted_assignment.assignment_id
"""
_SUBMISSIONS = f"""
    SELECT assignment.name, submitted_assignment.student_id, notebook.name
    FROM submitted_notebook {_OF_NOTEBOOK} ORDER BY 1, 2, 3
"""
_CELLS = f"""
    SELECT assignment.name, submitted_assignment.student_id, notebook.name, base_cell.name, {{columns}}
    FROM {{table}}
    JOIN base_cell ON base_cell.id = {{table}}.cell_id
    JOIN submitted_notebook ON submitted_notebook.id = {{table}}.notebook_id {_OF_NOTEBOOK}
    WHERE {{table}}.{{given}} IS NOT NULL ORDER BY 1, 2, 3, 4
"""


class MergeError(ValueError):
    """A gradebook that cannot be merged; says which, and what to do."""


@dataclass
class Merged:
    """What came of it: how many marks and comments were taken, and lines about those that were not."""

    n_marks: int = 0
    n_comments: int = 0
    differ: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.n_marks} marks and {self.n_comments} comments were taken"]
        if self.differ:
            lines += [f"not the same in both, {len(self.differ)}; nothing was changed there, decide in the formgrader:"]
            lines += [f"  {line}" for line in self.differ]
        if self.refused:
            lines += [f"not taken, {len(self.refused)}; give them in the formgrader if they are meant:"]
            lines += [f"  {line}" for line in self.refused]
        if self.unknown:
            lines += [f"not in this gradebook, {len(self.unknown)}:", *(f"  {line}" for line in self.unknown)]
        return "\n".join(lines)


class Given(NamedTuple):
    """What somebody gave to a cell by hand: points and extra credit, or one comment."""

    assignment: str
    student: str
    notebook: str
    cell: str
    what: tuple

    @property
    def who(self) -> str:
        return one_line(f"{self.student}, {self.assignment}")


def merge(root: Path, others: list[Path]) -> Merged:
    """Takes what the other gradebooks' people wrote where this one has nothing; never changes what is here.

    Raises:
        MergeError: this course has no gradebook, or another file is none.
    """
    own = root / "gradebook.db"
    for path in (own, *others):
        if not path.is_file() or path.read_bytes()[:15] != b"SQLite format 3":
            raise MergeError(f"{path} is no gradebook: give the gradebook.db of another copy of this course")
        if path is not own and path.samefile(own):
            raise MergeError(f"{path} is this course's own gradebook: give the other assistant's")
    read = [(path.name, *_read(path)) for path in others]
    done = Merged()
    with Gradebook(f"sqlite:///{own}") as ours:
        for where, submissions, marks, comments in read:
            for one in submissions:
                _own(ours, one, where, done)
            for given in marks:
                if (notebook := _own(ours, given, where, done)) is not None:
                    _take_mark(notebook, given, where, done)
            for given in comments:
                if (notebook := _own(ours, given, where, done)) is not None:
                    _take_comment(notebook, given, where, done)
        ours.db.commit()
    return done


def _read(path: Path) -> tuple[list[Given], list[Given], list[Given]]:
    """Its submitted notebooks, and the marks and comments that were given by hand.

    Raises:
        MergeError: it is no gradebook of nbgrader's, or made so that reading it has no end.
    """
    deadline = time.monotonic() + _READ_S
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as file:
            file.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            file.execute("PRAGMA trusted_schema = OFF")
            kinds = dict(file.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
            if missing := [name for name in _TABLES if kinds.get(name) != "table"]:
                raise MergeError(f"{path} is no gradebook of nbgrader's: it has no table {missing[0]}")
            marks = _given(file, "grade", "manual_score", "extra_credit", "needs_manual_grade")
            comments = list(_given(file, "comment", "manual_comment"))
            submissions = [Given(*map(str, row), "", ()) for row in file.execute(_SUBMISSIONS)]
            return submissions, [one for one in marks if not one.what[2]], comments
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise MergeError(
            f"{path} cannot be read as a gradebook ({one_line(str(error))}): ask for the file once more"
        ) from None


def _given(file: sqlite3.Connection, table: str, given: str, *more: str) -> Iterator[Given]:
    columns = ", ".join(f"{table}.{name}" for name in (given, *more))
    for assignment, student, notebook, cell, *what in file.execute(
        _CELLS.format(table=table, given=given, columns=columns)
    ):
        yield Given(str(assignment), str(student), str(notebook), str(cell), tuple(what))


def _own(ours: Gradebook, given: Given, where: str, done: Merged) -> SubmittedNotebook | None:
    """The same notebook in this gradebook; a line, once, if there is none."""
    try:
        return ours.find_submission_notebook(given.notebook, given.assignment, given.student)
    except MissingEntry:
        line = f"{given.who}: only in {where}"
        if line not in done.unknown:
            done.unknown.append(line)
        return None


def _take_mark(own: SubmittedNotebook, given: Given, where: str, done: Merged) -> None:
    mine = next((grade for grade in own.grades if grade.name == given.cell), None)
    if mine is None:
        return
    points, extra, _ = given.what
    name = one_line(f"{given.who}, {given.cell}")
    if not _are_points(points, mine.max_score) or not _are_points(extra or 0, mine.max_score):
        shown = one_line(f"{points!s:.20}" + f" and {extra!s:.20} extra" * bool(extra))
        done.refused.append(f"{name}: {shown} in {where}, of {mine.max_score:g}")
    elif mine.manual_score is not None and not mine.needs_manual_grade:
        if (mine.manual_score, mine.extra_credit or 0) != (points, extra or 0):
            done.differ.append(f"{name}: {mine.manual_score:g} points here, {points:g} in {where}")
    elif mine.auto_score is not None and not mine.needs_manual_grade:
        if (mine.auto_score, 0) != (points, extra or 0):
            done.refused.append(f"{name}: {mine.auto_score:g} points by its check, {points:g} by hand in {where}")
    else:
        mine.manual_score, mine.extra_credit, mine.needs_manual_grade = points, extra, False
        done.n_marks += 1


def _are_points(points: object, max_score: float) -> bool:
    return type(points) in (int, float) and math.isfinite(points) and 0 <= points <= max_score


def _take_comment(own: SubmittedNotebook, given: Given, where: str, done: Merged) -> None:
    mine = next((comment for comment in own.comments if comment.name == given.cell), None)
    (text,) = given.what
    if mine is None or not text or mine.manual_comment == text:
        return
    name = one_line(f"{given.who}, {given.cell}")
    if type(text) is not str:
        done.refused.append(f"{name}: a comment in {where} that is no text")
    elif mine.manual_comment:
        done.differ.append(f"{name}: another comment in {where}: {one_line(text, 80)}")
    else:
        mine.manual_comment = text
        done.n_comments += 1
