"""nbgrader on this course: release, validate, autograde, feedback, export, on submissions of every kind."""

from __future__ import annotations

import copy
import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from hw_grader.course.trusted_verdict_step import UNSAFE
from hw_grader.report import ClassResult, Row, read_results, to_html, to_table
from tools.build import build
from tools.lesson import ROOT, parse_lesson

FIXTURE = Path(__file__).parents[2] / "building" / "from_lessons" / "fixtures" / "lessons" / "01_tiny_lesson.py"
NAME, NOTEBOOK = "01_tiny_lesson", "tiny_lesson.ipynb"


def nbgrader(course: Path, *arguments: str, timeout: float = 280) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "nbgrader", *arguments]
    environment = {**os.environ, UNSAFE: "1"}  # the plain way; tests of the sandbox are elsewhere
    return subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True, timeout=timeout)


def tiny_course(folder: Path) -> nbformat.NotebookNode:
    """Makes a course of one tiny lesson in `folder`; gives its release."""
    shutil.copytree(FIXTURE.parent, folder / "lessons")
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    build(folder, unchecked=True)
    return nbformat.read(folder / "notebooks" / NAME / NOTEBOOK, as_version=4)


def cell(notebook, grade_id: str):
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def answered(trusted):
    """The release with the reference answers, as a student would hand it in."""
    notebook = copy.deepcopy(trusted)
    written = parse_lesson(FIXTURE.read_text(), FIXTURE).with_role("exercise")[0].source
    lines = [line for line in written.splitlines() if "SOLUTION" not in line]
    cell(notebook, "hello").source = "\n".join(lines)
    cell(notebook, "why_ranks").source = "So that each knows its share."
    return notebook


def noisy(notebook):
    cell(notebook, "hello").source += "\nimport sys\nprint('a warning', file=sys.stderr)\n"
    cell(notebook, "helpers").source = "import sys, warnings\nwarnings.warn('noise')"  # locked: restored before grading


def copied(notebook):
    at = notebook.cells.index(cell(notebook, "hello"))
    notebook.cells.insert(at + 1, copy.deepcopy(notebook.cells[at]))


def unmarked(notebook):
    for c in notebook.cells:
        c.metadata.pop("nbgrader", None)


def deleted_exercise(notebook):
    notebook.cells.remove(cell(notebook, "hello"))


def crash(notebook):
    cell(notebook, "hello").source += "\nimport os\nos._exit(3)"


def skipped(notebook):
    for c in notebook.cells:
        c.metadata["tags"] = ["skip-execution"]


def silenced(notebook):
    cell(notebook, "hello").source = "def hello(rank, world_size, name): pass"
    cell(notebook, "check-hello").source = "print('ok: hello')"


def partial(notebook):
    cell(notebook, "hello").source = "def hello(rank, world_size, name): print('Hello')"


CHANGES = {
    "noisy": noisy,
    "copied": copied,
    "unmarked": unmarked,
    "deleted": deleted_exercise,
    "crashed": crash,
    "skipped": skipped,
    "silenced": silenced,
    "wrong": partial,
}


def make_class(course: Path) -> None:
    """A course of one tiny lesson with a class of good and broken submissions, graded by the nbgrader command."""
    trusted = tiny_course(course)
    hand_in(course, "reference", answered(trusted))
    hand_in(course, "starter", trusted)
    for student, change in CHANGES.items():
        notebook = answered(trusted)
        change(notebook)
        hand_in(course, student, notebook)
    hand_in(course, "empty", "")
    hand_in(course, "invalid", '{"cells": [')
    hand_in(course, "other", json.dumps(["not", "a", "notebook"]))
    made = nbgrader(course, "generate_assignment", NAME, "--force")
    assert made.returncode == 0, made.stderr
    (course / "by_command.ipynb").write_bytes((course / "notebooks" / NAME / NOTEBOOK).read_bytes())
    assert build(course).written == []
    done = nbgrader(course, "autograde", NAME, timeout=900)
    assert done.returncode == 0, done.stderr


def hand_in(course: Path, student: str, notebook) -> None:
    folder = course / "submitted" / student / NAME
    folder.mkdir(parents=True)
    text = notebook if isinstance(notebook, str) else json.dumps(notebook)  # duplicate ids and all
    (folder / NOTEBOOK).write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def graded(made_once):
    return made_once("nbgraders_class", make_class)


@pytest.fixture(scope="module")
def rows(graded):
    (result,) = read_results(graded)
    return {row.student: row for row in result.rows}


def test_the_nbgrader_command_makes_the_very_release_that_the_builder_makes(graded):
    assert (graded / "notebooks" / NAME / NOTEBOOK).read_bytes() == (graded / "by_command.ipynb").read_bytes()


def test_the_reference_has_all_points_and_the_starter_none(rows):
    assert (rows["reference"].points, rows["reference"].max_points, rows["reference"].by_hand) == (4.5, 4.5, 2)
    assert rows["starter"].points == 0
    assert "hello is not written yet" in rows["starter"].marks[0].reason


@pytest.mark.parametrize("student", ["noisy", "copied", "unmarked", "skipped"])
def test_what_does_not_touch_the_answer_costs_nothing(rows, student):
    assert rows[student].points == 4.5


def test_every_submission_has_a_row_with_a_reason(rows, graded):
    handed_in = {folder.name for folder in (graded / "submitted").iterdir()}
    assert rows.keys() == handed_in
    for row in rows.values():
        assert len(row.marks) == 3
        for mark in row.marks:
            assert mark.by_hand or not mark.lost or mark.reason


@pytest.mark.parametrize(
    ("student", "says"),
    [
        ("empty", "the file is empty"),
        ("invalid", "not a notebook"),
        ("other", "not a notebook"),
        ("crashed", "process ended"),
        ("deleted", "hello is not written yet|not defined"),
        ("silenced", "Rank 0"),
        ("wrong", "Rank 0"),
    ],
)
def test_a_broken_submission_scores_nothing_and_says_why(rows, student, says):
    first = rows[student].marks[0]
    assert first.points == 0
    assert any(part in first.reason for part in says.split("|")), first.reason


def test_notes_say_what_was_repaired(rows):
    assert any("2 cells carry this id" in note for note in rows["copied"].notes)
    assert any("missing" in note for note in rows["deleted"].notes)


def test_the_release_validates_and_feedback_and_export_work(graded):
    done = nbgrader(graded, "validate", f"notebooks/{NAME}/{NOTEBOOK}")
    assert "VALIDATION FAILED ON 3 CELL(S)" in done.stdout
    assert "CheckFailed: hello is not written yet" in done.stdout
    done = nbgrader(graded, "generate_feedback", NAME)
    assert done.returncode == 0, done.stderr
    page = (graded / "feedback" / "wrong" / NAME / "tiny_lesson.html").read_text()
    assert "CheckFailed" in page
    done = nbgrader(graded, "export", "--to", "grades.csv")
    assert done.returncode == 0, done.stderr
    with (graded / "grades.csv").open() as file:
        scores = {line["student_id"]: (line["raw_score"], line["score"]) for line in csv.DictReader(file)}
    assert scores["reference"] == ("4.5", "4.5")
    assert scores["wrong"][0] == "0.0"
    assert scores["empty"] == ("", "")  # could not be graded: no 0
    assert len(scores) == 13


def test_the_report_shows_each_student_and_each_loss(graded):
    results = read_results(graded)
    table, page = to_table(results[0]), to_html(results)
    assert "reference    4.5 / 4.5  (+ 2 by hand)" in table
    assert "-4.5 hello, hello-again: not written yet." in table
    for text in (table, page):
        assert "the file is empty" in text
        assert "hello-again" in text
    assert "<script" not in page
    assert "⚠ crashed" in page  # not the same as a wrong answer


def test_a_students_name_cannot_change_the_page():
    page = to_html([ClassResult("01", [Row("<script>alert(1)</script>")])])
    assert "<script>" not in page
