"""Marks as each LMS takes them: one CSV a lesson, a row for everybody of the class list.

Empty, never 0: what could not be graded, and what was not handed in. Columns are those of each system's own import
(docs/lms.md has the steps).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import CsvExportPlugin

from hw_grader.course import grading_records
from hw_grader.course.scores import Score, as_csv, csv_text, number, scores
from hw_grader.term.class_list import ClassList, Student

KINDS = ("canvas", "moodle", "brightspace", "csv")


def as_lms(kind: str, root: Path, assignment: str, known: ClassList) -> str:
    """The CSV text for one lesson.

    kind: canvas, moodle, brightspace or csv.
    """
    found = scores(root, assignment)
    if kind == "csv":
        return as_csv(found)
    rows = _everybody(found, known, assignment)
    return csv_text({"canvas": _canvas, "moodle": _moodle, "brightspace": _brightspace}[kind](rows, assignment))


def _everybody(found: list[Score], known: ClassList, assignment: str) -> list[tuple[Student, Score]]:
    by_student = {score.student: score for score in found}
    most = max((score.max_points for score in found), default=0.0)
    rows = [
        (person, by_student.pop(name, Score(name, assignment, None, most))) for name, person in known.students.items()
    ]
    return rows + [(Student(s.student, s.first_name, s.last_name), s) for s in by_student.values()]


def _canvas(rows: list[tuple[Student, Score]], assignment: str) -> list[list[Any]]:
    most = max((score.max_points for _, score in rows), default=0.0)
    table = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", assignment],
             ["    Points Possible", "", "", "", "", number(most)]]  # fmt: skip
    for person, score in rows:
        name = f"{person.last}, {person.first}" if person.last and person.first else person.name or person.student
        line = [name, person.ids.get("canvas", ""), person.number, person.student, person.section]
        table.append([*line, number(score.points)])
    return table


def _moodle(rows: list[tuple[Student, Score]], assignment: str) -> list[list[Any]]:
    table: list[list[Any]] = [["Username", "First name", "Last name", "ID number", "Email address", assignment,
                               f"{assignment} feedback"]]  # fmt: skip
    for person, score in rows:
        line = [person.student, person.first, person.last, person.number, person.mail, number(score.points)]
        table.append([*line, _said(score)])
    return table


def _brightspace(rows: list[tuple[Student, Score]], assignment: str) -> list[list[Any]]:
    table: list[list[Any]] = [["OrgDefinedId", "Username", "Last Name", "First Name", "Email",
                               f"{assignment} Points Grade", "End-of-Line Indicator"]]  # fmt: skip
    for person, score in rows:
        line = [person.number, person.student, person.last, person.first, person.mail]
        table.append([*line, number(score.points), "#"])
    return table


def _said(score: Score) -> str:
    """One line of feedback: what is missing, as a student may read it."""
    late = f"{number(score.late_penalty)} points off for being late. " if score.late_penalty else ""
    return late + (score.record.shown if score.record else "")


def without_points(root: Path, lesson: str) -> list[str]:
    """Students with a text of this lesson that nobody has graded yet."""
    if not (root / "gradebook.db").exists():
        return []
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
        known = {assignment.name for assignment in gradebook.assignments}
        submissions = gradebook.assignment_submissions(lesson) if lesson in known else []
        return sorted(submission.student.id for submission in submissions if submission.needs_manual_grade)


def said_of_waiting(lesson: str, students: list[str], what: str, command: str) -> str:
    """A line for the instructor: whose texts have no points yet, and that `what` is not whole without them."""
    names = f"{', '.join(students[:10])}{', ...' if len(students) > 10 else ''}"
    who = "1 student has" if len(students) == 1 else f"{len(students)} students have"
    return (f"{lesson}: {who} a text without points yet, {what}: {names}. "
            f"Grade it (make lab, Nbgrader, Formgrader), then {command} again")  # fmt: skip


class EmptyWhereUngraded(CsvExportPlugin):
    """`nbgrader export`: as nbgrader's, but what could not be graded or was not handed in is empty, not 0."""

    def export(self, gradebook: Gradebook) -> None:
        """Writes the CSV (`--to`, grades.csv without it)."""
        keys = ["assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "raw_score",
                "late_submission_penalty", "score", "max_score"]  # fmt: skip
        root, table = Path(self.parent.coursedir.root), [list(keys)]
        for assignment in gradebook.assignments:
            for student in gradebook.students:
                wanted = (assignment.name, self.assignment), (student.id, self.student)
                if all(not chosen or name in list(map(str, chosen)) for name, chosen in wanted):
                    row = {"assignment": assignment.name, "duedate": assignment.duedate, "student_id": student.id,
                           "last_name": student.last_name, "first_name": student.first_name, "email": student.email,
                           "max_score": assignment.max_score}  # fmt: skip
                    row |= _marks(gradebook, root, assignment, student)
                    table.append(["" if row.get(key) is None else row[key] for key in keys])
        target = Path(self.to or "grades.csv")
        target.write_text(csv_text(table), encoding="utf-8")
        self.log.info("Exported %d rows to %s", len(table) - 1, target)


def _marks(gradebook: Gradebook, root: Path, assignment: Any, student: Any) -> dict[str, Any]:
    try:
        handed_in = gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:
        return {}
    if not _is_graded(root, assignment.name, student.id):
        return {"timestamp": handed_in.timestamp}
    late = handed_in.late_submission_penalty or 0.0
    return {"timestamp": handed_in.timestamp, "raw_score": handed_in.score, "late_submission_penalty": late,
            "score": max(0.0, handed_in.score - late)}  # fmt: skip


def _is_graded(root: Path, assignment: str, student: str) -> bool:
    """What the record says; without one (graded without a sandbox), whether the autograded notebook could be read."""
    record = grading_records.load(root, assignment, student)
    if record is not None:
        return record.is_graded
    found = [nbformat.read(path, as_version=4) for path in (root / "autograded" / student / assignment).glob("*.ipynb")]
    return bool(found) and not any(nb.metadata.get("hw_grader", {}).get("unreadable") for nb in found)
