"""The class at a glance: who has how many points, and for what the others were lost.

    python -m hw_grader.report build/report.html [--course FOLDER]

Reads what nbgrader keeps, gradebook.db and autograded/; first it brings late.csv into the gradebook.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import nbformat
from markupsafe import Markup
from nbgrader.api import Gradebook

from hw_grader.course.grading_records import UNGRADED
from hw_grader.term import overview
from hw_grader.term.class_list import ClassListError, bring_names
from hw_grader.term.late import LateError, apply_rules

TEMPLATES = Path(__file__).parent / "templates"
_CAUSE = "likely cause:"  # who says it: a check


@dataclass(frozen=True)
class Mark:
    """One graded cell of one submission: points, out of how many, and why not all."""

    grade_id: str
    points: float
    max_points: float
    by_hand: bool = False  # still to be graded by a person
    reason: str = ""
    cause: str = ""  # in the check's own words; what a student writes gets into no other mark's

    @property
    def name(self) -> str:
        return self.grade_id.removeprefix("check-")

    @property
    def ungraded(self) -> str:
        """Why a 0 is no plain wrong answer, "crashed" or "limit" for example; empty if it is one."""
        state = self.reason.partition(":")[0]
        return state if self.lost and state in UNGRADED else ""

    @property
    def lost(self) -> float:
        return 0.0 if self.by_hand else self.max_points - self.points


@dataclass(frozen=True)
class Row:
    """One submission, or a student who handed in nothing."""

    student: str
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: bool = False  # the file could not be read at all
    late_penalty: float = 0.0  # points off

    @property
    def is_handed_in(self) -> bool:
        return bool(self.marks)

    @property
    def is_graded(self) -> bool:
        """Whether the points mean anything: False is not a 0, somebody has to look, or nothing was handed in."""
        return self.is_handed_in and not self.unreadable and all(m.ungraded != "grader-fault" for m in self.marks)

    @property
    def points(self) -> float:
        """Less what being late costs."""
        return max(0.0, sum(m.points for m in self.marks) - self.late_penalty)

    @property
    def max_points(self) -> float:
        """Of what is graded by now."""
        return sum(m.max_points for m in self.marks if not m.by_hand)

    @property
    def by_name(self) -> dict[str, Mark]:
        return {m.grade_id: m for m in self.marks}

    @property
    def by_hand(self) -> float:
        """Points that a person still has to give."""
        return sum(m.max_points for m in self.marks if m.by_hand)


@dataclass(frozen=True)
class ClassResult:
    """One assignment of a class: rows in the order of names."""

    assignment: str
    rows: list[Row] = field(default_factory=list)

    @property
    def grade_ids(self) -> list[str]:
        return list(dict.fromkeys(m.grade_id for row in self.rows for m in row.marks))

    @property
    def mean(self) -> float:
        """Of those who handed in what could be graded."""
        graded = [row.points for row in self.rows if row.is_graded]
        return sum(graded) / len(graded) if graded else 0.0

    @property
    def n_handed_in(self) -> int:
        return sum(row.is_handed_in for row in self.rows)

    @property
    def n_graded(self) -> int:
        return sum(row.is_graded for row in self.rows)

    def passed(self, grade_id: str) -> int:
        """How many have all points of one cell."""
        marks = [m for row in self.rows for m in row.marks if m.grade_id == grade_id]
        return sum(m.points >= m.max_points and not m.by_hand for m in marks)


def read_results(course: Path) -> list[ClassResult]:
    """Every assignment in the course's gradebook that somebody handed in, or could have."""
    late, known = apply_rules(course), bring_names(course).students
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        students = sorted({student.id for student in gradebook.students} | set(known))
        results = []
        for assignment in sorted(gradebook.assignments, key=lambda a: a.name):
            handed_in = {s.student.id: s for s in gradebook.assignment_submissions(assignment.name)}
            if handed_in:
                said = late.get(assignment.name, {})
                rows = [_row(course, name, handed_in.get(name), said.get(name, "")) for name in students]
                results.append(ClassResult(assignment.name, rows))
    return results


def _row(course: Path, student: str, submission, late: str = "") -> Row:
    if submission is None:
        return Row(student, notes=("nothing was handed in",))
    reasons, notes, unreadable = {}, [late] if late else [], False
    for notebook in submission.notebooks:
        path = course / "autograded" / student / submission.assignment.name / f"{notebook.name}.ipynb"
        found, said, is_broken = _said(path)
        unreadable |= is_broken
        reasons.update(found)
        notes += said
    order = {name: n for n, name in enumerate(reasons)}
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    grades.sort(key=lambda grade: order.get(grade.name, len(order)))
    return Row(
        student,
        tuple(_mark(grade, reasons) for grade in grades),
        tuple(notes),
        unreadable,
        submission.late_submission_penalty or 0.0,
    )


def _mark(grade, reasons: dict[str, tuple[str, str]]) -> Mark:
    by_hand = bool(grade.needs_manual_grade) and grade.manual_score is None
    points = float(grade.score or 0)
    reason, cause = reasons.get(grade.name, ("not graded: there is no autograded notebook", ""))
    if grade.manual_score is not None:
        reason, cause = "graded by hand", ""
    if by_hand or points >= grade.max_score:
        return Mark(grade.name, points, float(grade.max_score), by_hand)
    return Mark(grade.name, points, float(grade.max_score), by_hand, reason, cause)


def _said(path: Path) -> tuple[dict[str, tuple[str, str]], list[str], bool]:
    """(reason, cause) of each graded cell of the autograded notebook, in its order; repairs; if it is unreadable."""
    if not path.exists():
        return {}, ["the notebook was not handed in or not graded"], True
    notebook = nbformat.read(path, as_version=4)
    reasons = {}
    for cell in notebook.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("grade"):
            errors = [o for o in cell.get("outputs", []) if o.output_type == "error"]
            unmarked = "no answer" if marks.get("solution") else ""
            cause = cell.metadata.get("hw_grader", {}).get("cause", "")
            reasons[marks["grade_id"]] = (_one_line(errors[0], cause) if errors else unmarked, cause)
    about = notebook.metadata.get("hw_grader", {})
    broken = [about["unreadable"]] if "unreadable" in about else []
    return reasons, [*broken, *about.get("notes", [])], bool(broken)


def _one_line(error, cause: str) -> str:
    """The message without its name if it is a check's, with its likely cause if it has one."""
    first = (error.evalue.strip().splitlines() or [error.ename])[0].strip().replace(_CAUSE, "'likely cause' ")
    name = "" if error.ename in ("CheckFailed", "fail") or not error.evalue else f"{error.ename}: "
    return " ".join([name + first, *([f"{_CAUSE} {cause}"] if cause else [])])


def to_table(result: ClassResult, width: int = 110) -> str:
    """The assignment's gradebook as text: points, and under each name what was lost and why."""
    handed_in = f"{result.n_handed_in} of {len(result.rows)} handed in"
    head = f"{result.assignment}: {handed_in}, mean of {result.n_graded} {_number(result.mean)}"
    lines = [head, "-" * len(head)]
    widest = max((len(row.student) for row in result.rows), default=0)
    for row in result.rows:
        by_hand = f"  (+ {_number(row.by_hand)} by hand)" if row.by_hand else ""
        points = _number(row.points) if row.is_graded else ""
        most = f"{points:>5} / {_number(row.max_points)}{by_hand}" if row.is_handed_in else "      not handed in"
        lines.append(f"{row.student:<{widest}}  {most}")
        for text in losses(row):
            lines += textwrap.wrap(
                text, width, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False
            )
    return "\n".join(lines)


def losses(row: Row) -> list[str]:
    """What a submission lost and why, one text a reason, then what was repaired in it."""
    by_reason: dict[str, list[Mark]] = {}
    for mark in row.marks:
        if mark.lost:
            reason = re.sub(r"^[\w.]+ is not written yet\.", "not written yet.", mark.reason or "wrong")
            by_reason.setdefault(reason, []).append(mark)
    texts = []
    for reason, marks in by_reason.items():
        names = "all checks" if len(marks) == len(row.marks) > 1 else ", ".join(mark.name for mark in marks)
        texts.append(f"-{_number(sum(mark.lost for mark in marks))} {names}: {reason}")
    return [*texts, *(note for note in row.notes if not any(note in text for text in texts))]


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def to_html(results: Iterable[ClassResult]) -> str:
    """Every check of every submission, as one page that needs nothing else, not even a script."""
    return _environment().get_template("report.html").render(results=list(results))


def to_class_page(results: Iterable[ClassResult]) -> str:
    """The class on one screen: who needs help, what to teach again, everybody; one page with its own script."""
    results, environment = list(results), _environment()
    rows = overview.table(results)
    script = (TEMPLATES / "class.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("class.html").render(
        results=results, rows=rows, anchors={row["student"]: f"s{n}" for n, row in enumerate(rows)},
        still=overview.standing_still(results), missing=overview.missing(results), causes=overview.causes(results),
        hardest=overview.hardest(results), distribution=overview.distribution, by_exercise=overview.by_exercise,
        script=Markup(script), script_hash=digest,
    )  # fmt: skip


def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = _number
    environment.filters["losses"] = losses
    return environment


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hw_grader.report", description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="the page to write, such as build/report.html")
    parser.add_argument("--course", type=Path, default=Path(), help="the folder with gradebook.db; this one by default")
    chosen = parser.parse_args(arguments)
    if not (chosen.course / "gradebook.db").exists():
        print(f"there is no gradebook.db in {chosen.course.resolve()}; grade something first", file=sys.stderr)
        return 1
    try:
        results = read_results(chosen.course)
    except (ClassListError, LateError) as error:
        print(error, file=sys.stderr)
        return 2
    chosen.target.parent.mkdir(parents=True, exist_ok=True)
    checks = chosen.target.with_name(f"{chosen.target.stem}_checks{chosen.target.suffix}")
    chosen.target.write_text(to_class_page(results), encoding="utf-8")
    checks.write_text(to_html(results), encoding="utf-8")
    print("\n\n".join([*map(to_table, results), f"wrote {chosen.target}, and {checks} with every check"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
