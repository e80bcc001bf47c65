"""Two assistants, two copies of the course: brings points and comments that were given by hand into one gradebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry, SubmittedNotebook


class MergeError(ValueError):
    """A gradebook that cannot be merged; says which, and what to do."""


@dataclass
class Merged:
    """What came of it: how many marks and comments were taken, and lines about those that are not the same."""

    n_marks: int = 0
    n_comments: int = 0
    differ: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.n_marks} marks and {self.n_comments} comments were taken"]
        if self.differ:
            lines += [f"not the same in both, {len(self.differ)}; nothing was changed there, decide in the formgrader:"]
            lines += [f"  {line}" for line in self.differ]
        if self.unknown:
            lines += [f"not in this gradebook, {len(self.unknown)}:", *(f"  {line}" for line in self.unknown)]
        return "\n".join(lines)


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
    done = Merged()
    with Gradebook(f"sqlite:///{own}") as ours:
        for path in others:
            with Gradebook(f"sqlite:///{path.resolve()}") as theirs:
                _merge(ours, theirs, path.name, done)
        ours.db.commit()
    return done


def _merge(ours: Gradebook, theirs: Gradebook, where: str, done: Merged) -> None:
    for assignment in theirs.assignments:
        for submission in theirs.assignment_submissions(assignment.name):
            for notebook in submission.notebooks:
                who = f"{submission.student.id}, {assignment.name}"
                try:
                    own = ours.find_submission_notebook(notebook.name, assignment.name, submission.student.id)
                except MissingEntry:
                    done.unknown.append(f"{who}: only in {where}")
                    continue
                _notebook(own, notebook, who, where, done)


def _notebook(own: SubmittedNotebook, other: SubmittedNotebook, who: str, where: str, done: Merged) -> None:
    grades = {grade.name: grade for grade in own.grades}
    for grade in other.grades:
        mine = grades.get(grade.name)
        if grade.manual_score is None or grade.needs_manual_grade or mine is None:
            continue
        if mine.manual_score is None or mine.needs_manual_grade:
            mine.manual_score, mine.extra_credit, mine.needs_manual_grade = (
                grade.manual_score,
                grade.extra_credit,
                False,
            )
            done.n_marks += 1
        elif (mine.manual_score, mine.extra_credit or 0) != (grade.manual_score, grade.extra_credit or 0):
            done.differ.append(
                f"{who}, {grade.name}: {mine.manual_score:g} points here, {grade.manual_score:g} in {where}"
            )
    comments = {comment.name: comment for comment in own.comments}
    for comment in other.comments:
        mine = comments.get(comment.name)
        if not comment.manual_comment or mine is None or mine.manual_comment == comment.manual_comment:
            continue
        if mine.manual_comment:
            done.differ.append(f"{who}, {comment.name}: another comment in {where}: {comment.manual_comment[:80]}")
        else:
            mine.manual_comment = comment.manual_comment
            done.n_comments += 1
